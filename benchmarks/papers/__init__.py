"""Published studies, run again and set beside the published figures."""
