"""The functions of CUDA's runtime, and of CuTeDSL's, that compiled host code calls, as ctypes callbacks.

Host code sees what it would see with one GPU, the given chip. Whatever goes wrong in a callback is kept, and host code
is given an error code, which ends its own call.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_int32, c_uint, c_void_p
from typing import Any, Protocol

from optimized.compile.cubin import resources_of
from parity.executors.simulate.cuda import (
    DEVICE_ATTRIBUTES,
    Code,
    CudaError,
    KernelAttribute,
    LaunchConfig,
)
from parity.executors.simulate.fatbin import cubin_at
from parity.executors.simulate.launch_request import launch_of
from parity.executors.simulate.refusals import LoadedKernel, allow_dynamic_shared, check_launch
from simulators.gpu.chip import Chip
from simulators.gpu.launch import Launch
from simulators.gpu.limits import most_threads
from simulators.gpu.ptx.module import Module


class Memory(Protocol):
    """A simulated GPU's."""

    def add(self, address: int, size: int, name: str, *, is_initialized: bool = True) -> object:
        """Kernels may touch these bytes of the host's memory."""

    def remove(self, address: int) -> None:
        """No longer."""


class Gpu(Protocol):
    """A simulated one."""

    @property
    def memory(self) -> Memory: ...

    def launch(self, module: Module, launch: Launch) -> object:
        """Errors: whatever the simulator finds wrong."""


_INT_OUT, _HANDLE_OUT = POINTER(c_int), POINTER(c_void_p)
_INIT = CFUNCTYPE(c_int, _HANDLE_OUT)
_LOAD = CFUNCTYPE(c_int, _HANDLE_OUT, c_int)
_SET_ERROR = CFUNCTYPE(None, c_char_p, c_char_p)
_SET_ERROR_FROM_PARTS = CFUNCTYPE(None, c_char_p, POINTER(c_char_p), c_int32)


class EntryPoints:
    """One set of them, for one GPU. `callbacks` must outlive whatever is linked against them."""

    def __init__(self, gpu: Gpu, chip: Chip) -> None:
        self._gpu = gpu
        self._chip = chip
        self._libraries: dict[int, dict[str, LoadedKernel]] = {}
        self._kernels: dict[int, LoadedKernel] = {}
        self.module: Module | None = None  # of the object that is running, and may load its machine code
        self.error: BaseException | None = None  # the first since it was last set to None
        self.callbacks = {
            "_cudaGetDevice": self._guarded(self._get_device, _INT_OUT),
            "_cudaSetDevice": self._guarded(self._set_device, c_int),
            "_cudaDeviceGetAttribute": self._guarded(self._device_attribute, _INT_OUT, c_int, c_int),
            "_cudaLibraryLoadData": self._guarded(
                self._load_library, _HANDLE_OUT, c_void_p, c_void_p, c_void_p, c_uint, c_void_p, c_void_p, c_uint
            ),
            "_cudaLibraryGetKernel": self._guarded(self._kernel_named, _HANDLE_OUT, c_void_p, c_char_p),
            "_cuKernelGetAttribute": self._guarded(self._kernel_attribute, _INT_OUT, c_int, c_void_p, c_int),
            "_cudaFuncSetAttribute": self._guarded(self._set_attribute, c_void_p, c_int, c_int),
            "_cudaKernelSetAttributeForDevice": self._guarded(
                self._set_attribute_for_device, c_void_p, c_int, c_int, c_int
            ),
            "_cudaLaunchKernelEx": self._guarded(self._launch, POINTER(LaunchConfig), c_void_p, POINTER(c_void_p)),
            "cuda_dialect_init_library_once": self._guarded(self._init_once, _HANDLE_OUT, _INIT, _LOAD, _SET_ERROR),
            "CuteDSLRT_TVMFFISetRaisedCudaError": self._guarded(self._tell, _SET_ERROR_FROM_PARTS, c_int),
        }

    def _guarded(self, function: Callable[..., None], *argument_types: Any) -> Any:
        def called(*arguments: Any) -> int:
            try:
                function(*arguments)
                return 0
            except BaseException as error:  # an exception cannot pass through host code
                self.error = self.error or error
                return error.code if isinstance(error, CudaError) else Code.cudaErrorLaunchFailure

        return CFUNCTYPE(c_int, *argument_types)(called)

    def _get_device(self, device: Any) -> None:
        device[0] = 0

    def _set_device(self, device: int) -> None:
        if device != 0:
            raise CudaError(Code.cudaErrorInvalidDevice, f"device {device}; there is one GPU, 0")

    def _device_attribute(self, value: Any, attribute: int, device: int) -> None:
        self._set_device(device)
        if attribute not in DEVICE_ATTRIBUTES:
            raise NotImplementedError(f"device attribute {attribute} is not simulated")
        value[0] = DEVICE_ATTRIBUTES[attribute](self._chip)

    def _load_library(self, library: Any, code: int, *_: Any) -> None:
        assert self.module is not None, "machine code is loaded by host code that runs"
        kernels = {}
        for one in resources_of(cubin_at(code)):
            kernel = self.module.kernels[one.kernel]
            kernels[one.kernel] = LoadedKernel.loaded(
                self.module, kernel, one.registers, one.shared_bytes, one.local_bytes
            )
        library[0] = _new_handle(self._libraries, kernels)

    def _kernel_named(self, handle: Any, library: int, name: bytes) -> None:
        kernels = _known(self._libraries, library, "library")
        if name.decode() not in kernels:
            raise CudaError(Code.cudaErrorSymbolNotFound, f"no kernel {name.decode()} in what was loaded")
        handle[0] = _new_handle(self._kernels, kernels[name.decode()])

    def _kernel_attribute(self, value: Any, attribute: int, handle: int, device: int) -> None:
        self._set_device(device)
        kernel = _known(self._kernels, handle, "kernel")
        values = {
            KernelAttribute.MAX_THREADS_PER_BLOCK: most_threads(kernel.kernel) or self._chip.threads_per_block,
            KernelAttribute.SHARED_BYTES: kernel.static_shared_bytes,
            KernelAttribute.LOCAL_BYTES: kernel.local_bytes,
            KernelAttribute.REGISTERS: kernel.registers,
            KernelAttribute.MAX_DYNAMIC_SHARED_BYTES: kernel.max_dynamic_shared_bytes,
        }
        if attribute not in values:
            raise NotImplementedError(f"kernel attribute {attribute} is not simulated")
        value[0] = values[KernelAttribute(attribute)]

    def _set_attribute(self, handle: int, attribute: int, value: int) -> None:
        kernel = _known(self._kernels, handle, "kernel")
        match attribute:
            case KernelAttribute.MAX_DYNAMIC_SHARED_BYTES:
                allow_dynamic_shared(kernel, value, self._chip)
            case KernelAttribute.NON_PORTABLE_CLUSTER:
                kernel.may_have_large_clusters = bool(value)
            case KernelAttribute.SHARED_CARVEOUT:
                pass  # a wish, which a chip may ignore too
            case _:
                raise NotImplementedError(f"setting kernel attribute {attribute} is not simulated")

    def _set_attribute_for_device(self, handle: int, attribute: int, value: int, device: int) -> None:
        self._set_device(device)
        self._set_attribute(handle, attribute, value)

    def _launch(self, config: Any, handle: int, arguments: Any) -> None:
        kernel = _known(self._kernels, handle, "kernel")
        launch = launch_of(config[0], kernel.kernel, arguments)
        check_launch(launch, kernel, self._chip)
        self._gpu.launch(kernel.module, launch)

    def _init_once(self, library: Any, init: Any, load: Any, set_error: Any) -> None:
        """Load machine code, and get its kernels for the one GPU there is, unless that is done."""
        if library[0]:
            return
        handle = c_void_p()
        if code := init(handle) or load(handle, 0):
            set_error(b"RuntimeError", b"machine code was not loaded")
            raise RuntimeError(f"machine code was not loaded: CUDA error {code}")
        library[0] = handle.value

    def _tell(self, set_error: Any, code: int) -> None:
        """Host code's way out. `error` says more than a code can."""
        parts = (c_char_p * 2)(b"CUDA error ", str(code).encode())
        set_error(b"RuntimeError", parts, 2)


def _new_handle(known: dict[int, Any], one: Any) -> int:
    handle = id(one)  # which `known` keeps alive, so that nothing else gets it
    known[handle] = one
    return handle


def _known(known: dict[int, Any], handle: int | None, kind: str) -> Any:
    if handle not in known:
        raise CudaError(Code.cudaErrorInvalidResourceHandle, f"no {kind} has the handle {handle}")
    return known[handle]
