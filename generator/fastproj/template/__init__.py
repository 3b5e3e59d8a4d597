"""The template: its versions, its questions, and rendering it."""
