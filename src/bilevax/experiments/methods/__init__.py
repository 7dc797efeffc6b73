"""Table 1 of the paper, and what each method costs when it is measured on one problem."""
