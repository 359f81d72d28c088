"""llama.cpp's C interface as three small objects: a library, a model with its vocabulary, a context with its KV cells.

Every call here blocks; the computing ones give up the interpreter's lock. A model's vocabulary may be read from any
thread, a context by one alone. Importing this module imports no llama.cpp: ``Library.load`` does.
"""

from __future__ import annotations

import ctypes
import importlib
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from inference_node.engines.base import EngineUnavailable
from inference_node.engines.llama_cpp_args import KV_TYPES, Settings

Floats = npt.NDArray[np.float32]
INSTALL = "install it with `make setup-llama-cpp`, or `pip install 'laya[llama-cpp]'` (a C++ compiler is needed)"
NO_ROOM = 1  # what ``decode`` gives when no cells are free
_ERROR = 3  # llama.cpp's log level
_PIECE = 256
_SPINS = "1000"  # some tens of microseconds


class NativeError(Exception):
    """llama.cpp said no: one sentence."""


# llama.cpp has one log in a process and holds no reference to who listens, so the listener is never let go: it outlives
# every Library, also one that was dropped without a word.
_errors: deque[str] = deque(maxlen=8)
_listener: Any = None


def _listen(level: int, text: bytes, _data: Any) -> None:
    if level == _ERROR and text.strip():
        _errors.append(text.decode("utf-8", "replace").strip())


class Library:
    """The shared library. What it complains of is one log for the whole process."""

    def __init__(self, api: Any) -> None:
        global _listener
        self.api = api
        if _listener is None:
            _listener = api.llama_log_callback(_listen)
        api.llama_log_set(_listener, ctypes.c_void_p(0))
        api.llama_backend_init()

    @staticmethod
    def load() -> Library:
        """Import llama-cpp-python. Raises EngineUnavailable."""
        if not any(name in os.environ for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")):
            # A computing thread that lost its core is waited for by all others at each of hundreds of barriers a token.
            # Left to itself OpenMP spins there for milliseconds, and keeps the very core from the one it waits for.
            os.environ["GOMP_SPINCOUNT"] = _SPINS
        try:
            return Library(importlib.import_module("llama_cpp"))
        except (ImportError, OSError, RuntimeError) as e:
            raise EngineUnavailable(f"inference.engine: llama_cpp cannot be loaded here ({e}); {INSTALL}") from None

    @property
    def offloads(self) -> bool:
        """Whether this build computes on a GPU."""
        return bool(self.api.llama_supports_gpu_offload())

    def last_words(self) -> str:
        """What llama.cpp complained of since the last call, the first of it, which names the cause."""
        words = _errors[0] if _errors else ""
        _errors.clear()
        _, _, said = words.partition(": ")
        return said or words

    def close(self) -> None:
        """Take the listener out: the library outlives this object."""
        silent = importlib.import_module("llama_cpp._logger")
        self.api.llama_log_set(silent.llama_log_callback, ctypes.c_void_p(0))


class Model:
    """A file's weights and vocabulary."""

    def __init__(self, library: Library, path: str, settings: Settings, go_on: Callable[[], bool]) -> None:
        """Load the file, as long as ``go_on`` says so. Raises NativeError."""
        self.library = library
        api = self.api = library.api
        params = api.llama_model_default_params()
        params.n_gpu_layers = settings.n_gpu_layers
        params.main_gpu = settings.main_gpu
        params.check_tensors = settings.check_tensors
        params.load_mode = (1 if settings.use_mmap else 0) | (2 if settings.use_mlock else 0)
        heard = api.llama_progress_callback(lambda _fraction, _data: go_on())
        params.progress_callback = heard
        library.last_words()
        self.handle = api.llama_model_load_from_file(path.encode(), params)
        if not self.handle:
            raise NativeError(f"llama.cpp cannot load it: {library.last_words() or 'it does not say why'}")
        self.vocab = api.llama_model_get_vocab(self.handle)
        self.tokens = int(api.llama_vocab_n_tokens(self.vocab))
        self.ends = frozenset(t for t in range(self.tokens) if api.llama_vocab_is_eog(self.vocab, t))
        self.bos = int(api.llama_vocab_bos(self.vocab))
        self.adds_bos = bool(api.llama_vocab_get_add_bos(self.vocab)) and self.bos >= 0
        self._pieces: tuple[dict[int, bytes], dict[int, bytes]] = ({}, {})

    @property
    def context_length(self) -> int:
        """Tokens that the model was made for."""
        return int(self.api.llama_model_n_ctx_train(self.handle))

    @property
    def generates(self) -> bool:
        """Whether it is a decoder of text alone."""
        api = self.api
        return bool(api.llama_model_has_decoder(self.handle)) and not (
            api.llama_model_has_encoder(self.handle) or api.llama_model_is_diffusion(self.handle)
        )

    @property
    def shares_prompts(self) -> bool:
        """Whether a sequence can begin with a part of another: not with states or windows."""
        api = self.api
        return not (
            api.llama_model_is_recurrent(self.handle)
            or api.llama_model_is_hybrid(self.handle)
            or api.llama_model_n_swa(self.handle) > 0
        )

    @property
    def quantization(self) -> str:
        """llama.cpp's name of the weights' type, as ``Q4_K - Medium``."""
        name = self.api.llama_ftype_name(self.api.llama_model_ftype(self.handle))
        return name.decode() if name else "gguf"

    @property
    def chat_template(self) -> str:
        """The Jinja template in the file; empty for none."""
        text = self.api.llama_model_chat_template(self.handle, None)
        return text.decode("utf-8", "replace") if text else ""

    def special(self, which: str) -> str:
        """The text of the vocabulary's token of that name, ``bos`` or ``eos``; empty where it has none."""
        token = int(getattr(self.api, f"llama_vocab_{which}")(self.vocab))
        return self.piece(token, True).decode("utf-8", "replace") if token >= 0 else ""

    def metadata(self, key: str) -> str:
        """A scalar of the file's metadata as text; empty where it has none."""
        buffer = ctypes.create_string_buffer(256)
        length = self.api.llama_model_meta_val_str(self.handle, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace") if length >= 0 else ""

    def tokenize(self, text: str, *, whole: bool) -> list[int]:
        """Token ids, special tokens' names read as such. ``whole``: with the tokens that begin and end a text.

        Raises UnicodeEncodeError for half of a surrogate pair.
        """
        data = text.encode()
        room = len(data) + 8
        while True:
            out = (ctypes.c_int32 * room)()
            count = self.api.llama_tokenize(self.vocab, data, len(data), out, room, whole, True)
            if count >= 0:
                return list(out[:count])
            room = -count

    def piece(self, token: int, special: bool) -> bytes:
        """The bytes of a token, which may be a part of a character; nothing for a mark unless ``special``."""
        cache = self._pieces[special]
        found = cache.get(token)
        if found is None:
            buffer = ctypes.create_string_buffer(_PIECE)
            size = self.api.llama_token_to_piece(self.vocab, token, buffer, _PIECE, 0, special)
            if size < 0:
                buffer = ctypes.create_string_buffer(-size)
                size = self.api.llama_token_to_piece(self.vocab, token, buffer, -size, 0, special)
            found = cache[token] = buffer.raw[: max(size, 0)]
        return found

    def close(self) -> None:
        """Free the weights; contexts first. Idempotent."""
        if self.handle:
            self.api.llama_model_free(self.handle)
            self.handle = None


class Context:
    """The KV cells of a model, and the batch that a step fills."""

    def __init__(self, model: Model, settings: Settings, cells: int, sequences: int) -> None:
        """Take the memory. Raises NativeError."""
        self._model = model
        api = self._api = model.api
        params = api.llama_context_default_params()
        params.n_ctx = cells
        params.n_batch = settings.n_batch
        params.n_ubatch = settings.n_ubatch
        params.n_seq_max = sequences
        params.n_outputs_max = min(sequences, settings.n_ubatch)
        params.n_threads = settings.n_threads
        params.n_threads_batch = settings.n_threads_batch
        params.flash_attn_type = -1 if settings.flash_attn is None else int(settings.flash_attn)
        params.type_k, params.type_v = KV_TYPES[settings.type_k], KV_TYPES[settings.type_v]
        params.kv_unified = True  # cells belong to whoever needs them
        params.no_perf = True
        for name in ("offload_kqv", "op_offload", "swa_full"):
            setattr(params, name, getattr(settings, name))
        for name in _ROPE:
            if (value := getattr(settings, name)) is not None:
                setattr(params, name, value)
        model.library.last_words()
        self._handle = api.llama_init_from_model(model.handle, params)
        if not self._handle:
            why = model.library.last_words() or "it does not say why"
            raise NativeError(f"llama.cpp cannot make a context of {cells} cells: {why}")
        self.cells = int(api.llama_n_ctx(self._handle))
        self._memory = api.llama_get_memory(self._handle)
        self._batch = api.llama_batch_init(settings.n_batch, 0, 1)
        shape = (settings.n_batch,)
        self._tokens = np.ctypeslib.as_array(self._batch.token, shape)
        self._positions = np.ctypeslib.as_array(self._batch.pos, shape)
        self._wanted = np.ctypeslib.as_array(self._batch.logits, shape)
        np.ctypeslib.as_array(self._batch.n_seq_id, shape)[:] = 1
        self._filled = 0

    def begin(self) -> None:
        """Empty the batch."""
        self._filled = 0

    def add(self, sequence: int, start: int, tokens: Sequence[int], want: bool) -> int:
        """Put tokens of a sequence into the batch, from position ``start`` on.

        ``want``: logits of the last of them are wanted; the index to ask for them comes back.
        """
        at, count = self._filled, len(tokens)
        end = at + count
        self._tokens[at:end] = tokens
        self._positions[at:end] = np.arange(start, start + count, dtype=np.int32)
        self._wanted[at:end] = 0
        self._wanted[end - 1] = want
        owners = self._batch.seq_id
        for i in range(at, end):
            owners[i][0] = sequence
        self._filled = end
        return end - 1

    def decode(self) -> int:
        """Compute the batch: 0, or ``NO_ROOM``. Raises NativeError for a failure that nothing helps."""
        self._batch.n_tokens = self._filled
        code = int(self._api.llama_decode(self._handle, self._batch))
        if code not in (0, NO_ROOM):
            why = self._model.library.last_words()
            raise NativeError(f"llama.cpp's decode failed with code {code}{f': {why}' if why else ''}")
        return code

    def logits(self, index: int) -> Floats:
        """The logits at an index of the batch; good until the next ``decode``."""
        found = self._api.llama_get_logits_ith(self._handle, index)
        if not found:
            raise NativeError(f"llama.cpp has no logits for entry {index} of its batch")
        return np.ctypeslib.as_array(found, (self._model.tokens,))

    def forget(self, sequence: int) -> None:
        """Free all cells of a sequence."""
        self._api.llama_memory_seq_rm(self._memory, sequence, -1, -1)

    def share(self, source: int, target: int, tokens: int) -> None:
        """Let a sequence have the first ``tokens`` of another, in the same cells."""
        self._api.llama_memory_seq_cp(self._memory, source, target, 0, tokens)

    def close(self) -> None:
        """Free everything. Idempotent."""
        if self._handle:
            self._api.llama_batch_free(self._batch)
            self._api.llama_free(self._handle)
            self._handle = None


_ROPE = (
    "rope_freq_base",
    "rope_freq_scale",
    "yarn_ext_factor",
    "yarn_attn_factor",
    "yarn_beta_fast",
    "yarn_beta_slow",
    "yarn_orig_ctx",
)
