"""The few calls of the CUDA driver that a recorder needs, through ctypes. Source: CUDA Driver API."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

ERROR_LOG_BUFFER, ERROR_LOG_BUFFER_SIZE_BYTES = 5, 6  # CUjit_option
LOG_BYTES = 1 << 16


class DriverError(Exception):
    """A call of the driver that failed."""


class Driver:
    """One device, its context and the memory that was allocated since `release`."""

    def __init__(self, device: int = 0) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._call("cuInit", ctypes.c_uint(0))
        self._device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(self._device), ctypes.c_int(device))
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self._call("cuCtxSetCurrent", context)
        self._allocated: list[ctypes.c_uint64] = []

    def name(self) -> str:
        text = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", text, ctypes.c_int(256), self._device)
        return text.value.decode()

    def version(self) -> int:
        """The newest CUDA that the driver knows: 12080 for 12.8."""
        number = ctypes.c_int()
        self._call("cuDriverGetVersion", ctypes.byref(number))
        return number.value

    def load(self, text: str) -> ctypes.c_void_p:
        """A module of a PTX text. A text that does not assemble: DriverError with the log."""
        log = ctypes.create_string_buffer(LOG_BYTES)
        options = (ctypes.c_int * 2)(ERROR_LOG_BUFFER, ERROR_LOG_BUFFER_SIZE_BYTES)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), LOG_BYTES)
        module = ctypes.c_void_p()
        image = ctypes.create_string_buffer(text.encode())
        code = self._cuda.cuModuleLoadDataEx(ctypes.byref(module), image, ctypes.c_uint(2), options, values)
        if code:
            raise DriverError(f"cuModuleLoadDataEx: {code}: {log.value.decode(errors='replace').strip()}")
        return module

    def unload(self, module: ctypes.c_void_p) -> None:
        self._call("cuModuleUnload", module)

    def upload(self, array: NDArray) -> ctypes.c_uint64:
        """The address of a copy on the device."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(array.nbytes, 1)))
        self._allocated.append(address)
        data = np.ascontiguousarray(array)
        self._call("cuMemcpyHtoD_v2", address, ctypes.c_void_p(data.ctypes.data), ctypes.c_size_t(data.nbytes))
        return address

    def download(self, address: ctypes.c_uint64, like: NDArray) -> NDArray:
        array = np.empty_like(like, order="C")
        self._call("cuMemcpyDtoH_v2", ctypes.c_void_p(array.ctypes.data), address, ctypes.c_size_t(array.nbytes))
        return array

    def release(self) -> None:
        """Frees what was uploaded."""
        for address in self._allocated:
            self._call("cuMemFree_v2", address)
        self._allocated.clear()

    def launch(
        self, module: ctypes.c_void_p, entry: str, grid: int, block: int, arguments: Sequence[ctypes.c_uint64]
    ) -> None:
        """Runs a kernel to its end. One that faults leaves the whole process unable to use the device."""
        function = ctypes.c_void_p()
        self._call("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(entry.encode()))
        pointers = (ctypes.c_void_p * max(len(arguments), 1))(*[ctypes.addressof(one) for one in arguments])
        sizes = [ctypes.c_uint(n) for n in (grid, 1, 1, block, 1, 1, 0)]
        self._call("cuLaunchKernel", function, *sizes, ctypes.c_void_p(None), pointers, ctypes.c_void_p(None))
        self._call("cuCtxSynchronize")

    def _call(self, function: str, *arguments: object) -> None:
        code = getattr(self._cuda, function)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text))
            name = text.value.decode() if text.value else str(code)
            raise DriverError(f"{function}: {name}")
