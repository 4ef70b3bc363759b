"""Bytes kept between the forward and the backward pass, tensor by tensor."""
