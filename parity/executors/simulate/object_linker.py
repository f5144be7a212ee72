"""Compiled objects linked in this process, without a compiler or a linker of the system: LLVM's, through llvmlite."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from itertools import count
from typing import Any

import tvm_ffi
from llvmlite import binding as llvm

_OF_TVM_FFI = ("TVMFFIEnvGetStream", "TVMFFIErrorSetRaisedFromCStr", "TVMFFIErrorSetRaisedFromCStrParts")
# An object calls this when it is unloaded: at the interpreter's end, when no Python may run any more.
_UNLOAD = "define void @cuda_dialect_unload_library_once(ptr %library) { ret void }"


class ObjectLinker:
    """Links objects against functions of ours, and nothing else but TVM-FFI and the C library."""

    def __init__(self, imports: Mapping[str, Any]) -> None:
        """imports: ctypes callbacks by the name of the symbol that they define. They must outlive what is linked."""
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self._jit = llvm.create_lljit_compiler()
        runtime = ctypes.CDLL(tvm_ffi.libinfo.find_libtvm_ffi())
        functions = {**imports, **{name: getattr(runtime, name) for name in _OF_TVM_FFI}}
        self._addresses = {name: ctypes.cast(one, ctypes.c_void_p).value for name, one in functions.items()}
        self._numbers = count()

    def link(self, data: bytes, function: str) -> Any:
        """The host function of that name, to be called with tensors.

        Errors: RuntimeError that names a symbol which nobody defines.
        """
        symbol = f"__tvm_ffi_{function}"
        builder = llvm.JITLibraryBuilder().add_object_img(data).add_ir(_UNLOAD).add_current_process()
        for name, address in self._addresses.items():
            builder.import_symbol(name, address)
        library = builder.export_symbol(symbol).link(self._jit, f"object {next(self._numbers)}")
        return tvm_ffi.Function.__from_extern_c__(library[symbol], keep_alive_object=library)
