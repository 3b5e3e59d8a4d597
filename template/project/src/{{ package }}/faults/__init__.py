"""What keeps a run alive, or ends it so that it can be continued: one module per fault."""
