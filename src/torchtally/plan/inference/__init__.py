"""What a model needs to generate: weights in any format, seconds of a prompt and of a token.

packings   how the numbers of a matrix lie in memory: bits, scales, zero points
gguf       llama.cpp's block formats, and which matrix gets which in its mixtures
formats    formats of weights by name: bf16, fp8, gptq, nvfp4, q4_K_M
weights    bytes of a model's weights in a format
"""
