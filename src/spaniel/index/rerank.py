"""A second look at the best hits: rerankers, and the engine that asks one.

The built-in one is a cross-encoder (Nogueira and Cho, https://arxiv.org/abs/1901.04085) on the
weights of a small sentence encoder. It scores a query and a document together and *adds* that
to the scaled similarity of the vector search, so that an untrained one keeps the order it was
given and a trained one has only the difference to learn. ``train_reranker`` fits it.
"""
