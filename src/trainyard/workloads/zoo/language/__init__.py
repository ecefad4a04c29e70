"""Networks of text and captions.

- bert, gpt, t5, transformer_lm: Transformers; mixtral: one with a mixture of experts; gcn: a gated convolutional language model
- gnmt: translation with LSTMs; deepbench: single recurrent layers; snli: a sentence-pair classifier
- show_and_tell, video_captioning: a captioner over an image network
"""
