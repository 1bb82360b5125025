"""A second look at the best hits: rerankers, and the engine that asks one.

The built-in one is a cross-encoder (Nogueira and Cho, https://arxiv.org/abs/1901.04085) on the
weights of a small sentence encoder. It scores a query and a document together and *adds* that
to the scaled similarity of the vector search, so that an untrained one keeps the order it was
given and a trained one has only the difference to learn. ``train_reranker`` fits it.
"""

import hashlib
import math
import random
import shutil
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from spaniel.corpus.extras import import_extra
from spaniel.errors import ConfigError, DataError, TrainingError
from spaniel.index.dense import text_of
from spaniel.index.encoder import MINILM, hash_of_files, model_path, quiet_loading
from spaniel.index.engine import SearchEngine
from spaniel.progress import Progress
from spaniel.store import hash_of, publish_directory, read_manifest
from spaniel.types import Document, Hit, Question
