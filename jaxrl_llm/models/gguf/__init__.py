"""GGUF files, of llama.cpp and Ollama, as models.

`folder.unpacked` makes the folder of a Hugging Face model of a file once, with
which everything else works as with any other. `header` reads what a file says,
`metadata` and `tokens` convert it to and from config.json and tokenizer.json,
`tensors` reads the weights, and `write` makes a file.
"""
