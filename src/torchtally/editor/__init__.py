"""What a run costs beside the lines of its source: a server for editors."""
