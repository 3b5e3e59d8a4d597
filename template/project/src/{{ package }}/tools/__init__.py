"""Programs for before and after training; no module outside this folder imports one."""
