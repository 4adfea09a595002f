"""Bytes and seconds to a target: how much each method takes until the model is as good as is asked for."""
