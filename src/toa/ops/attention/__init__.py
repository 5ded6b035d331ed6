"""Operator attention: one public function, three backends, one definition."""
