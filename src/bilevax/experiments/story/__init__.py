"""What `bilevax demo` tells a newcomer: two problems, each solved without and with bilevax."""

from bilevax.experiments.story.telling import tell

__all__ = ["tell"]
