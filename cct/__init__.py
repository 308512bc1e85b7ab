"""Compact Convolutional Transformers on CIFAR with interchangeable token mixers and pooling."""
