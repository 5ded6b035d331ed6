"""Measurements of `toa`: time, memory and accuracy of operator attention and of training steps."""
