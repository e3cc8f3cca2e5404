"""Reinforcement learning from verifiable rewards for language models."""
