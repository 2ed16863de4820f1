"""`slm-run report`: what a run wrote, as one page to look at."""
