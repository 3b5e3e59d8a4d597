"""Programs to run before and after training; no module outside this folder imports them."""
