"""Builds the stand-in for the CUDA driver for one PyTorch: needs gcc and nm, not CUDA."""

import hashlib
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("driver.c")
LIBRARY = "libcuda.so.1"
OTHER_NAMES = ["libnvidia-ml.so.1"]

IMPORTED = re.compile(r" U (_*(?:cuda|cu|cublas|cublasLt|cudnn|cusolverDn|cusparse|cufft)[A-Z]\w*)")
DEFINED = re.compile(r" [TW] (\w+)")
# What happens on the device, or only prepares it: nothing has to happen.
SILENT = re.compile(
    r"__cuda|cuda(Stream|Event|Device|Func|Thread|Profiler|MemcpyToSymbol|LaunchKernel)"
    r"|cu(Launch|Func|Module|Ctx)|cublas(?!\w*(Sdot|Ddot|nrm2|asum))"
    r"|cu(dnn|solverDn|sparse|fft)(Set|Destroy|XtSet)"
)
# Makes a handle and stores it where its first argument points.
CREATES = re.compile(r"cu(dnn|solverDn|sparse|fft)Create(\w*Descriptor)?$")
PROBE = """
import json, torch
from pathlib import Path
root = Path(torch.__file__).parent / "lib"
print(json.dumps({
    "libraries": [str(path) for path in sorted(root.glob("lib*.so"))],
    "cuda": torch.version.cuda,
    "cudnn": torch.backends.cudnn.version(),
    "torch": torch.__version__,
}))
"""


def function(name: str) -> str:
    """One function that PyTorch imports and `driver.c` does not have."""
    said = f'static int said; standin_missing("{name}", &said);'
    if CREATES.match(name):
        return f"int {name}(void **out) {{ *out = &standin_handle; return 0; }}"
    if SILENT.match(name):
        return f"int {name}(void) {{ return 0; }}"
    # Unknown: CUDA and cuBLAS go on, the others' answers are looked at, so they refuse.
    code = 0 if re.match(r"cu(da|blas)?[A-Z]", name) else 3000 if name.startswith("cudnn") else 9
    return f"int {name}(void) {{ {said} return {code}; }}"


def names(pattern: re.Pattern[str], *command: str) -> set[str]:
    """What `nm` says that matches."""
    printed = subprocess.run(["nm", *command], capture_output=True, text=True, check=True).stdout
    return {match[1] for match in pattern.finditer(printed)}


def build(python: str) -> Path:
    """The library for the PyTorch of this interpreter, kept in a temporary folder for next time."""
    facts = json.loads(
        subprocess.run([python, "-c", PROBE], capture_output=True, check=True).stdout
    )
    if facts["cuda"] is None:
        raise SystemExit(f"{python} has PyTorch {facts['torch']}, which is built without CUDA")
    sources = SOURCE.read_bytes() + Path(__file__).read_bytes() + json.dumps(facts).encode()
    digest = hashlib.sha256(sources).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"torchtally-driver-{digest}"
    library = folder / LIBRARY
    if library.exists():
        return library
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        major, minor = facts["cuda"].split(".")[:2]
        written = Path(work) / "driver.o"
        source = Path(work) / "others.c"
        linked = Path(work) / LIBRARY
        flags = ["-std=gnu11", "-O1", "-fPIC", "-fvisibility=default", "-w"]
        versions = [f"-DCUDA_MAJOR={major}", f"-DCUDA_MINOR={minor}"]
        versions.append(f"-DCUDNN_VERSION={facts['cudnn']}")
        gcc = ["gcc", *flags, *versions]
        subprocess.run([*gcc, "-c", str(SOURCE), "-o", str(written)], check=True)
        wanted: set[str] = set()
        for path in facts["libraries"]:
            wanted |= names(IMPORTED, "-D", "--undefined-only", "--without-symbol-versions", path)
        wanted -= names(DEFINED, "--defined-only", str(written))
        wanted = {name for name in wanted if not name.startswith("cuFile")}
        bodies = "\n".join(function(name) for name in sorted(wanted))
        source.write_text(
            "extern void standin_missing(const char *, int *);\n"
            f"static char standin_handle;\n{bodies}\n"
        )
        # The name of the driver's library: whoever asks for that later is given this one.
        shared = [
            "-shared",
            f"-Wl,-soname,{LIBRARY}",
            str(written),
            str(source),
            "-ldl",
            "-lpthread",
        ]
        subprocess.run([*gcc, *shared, "-o", str(linked)], check=True)
        # The loader sees that these are one file, hence one library.
        for name in OTHER_NAMES:
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(LIBRARY)
        os.replace(linked, library)
    return library


def environment(python: str) -> dict[str, str]:
    """The environment in which that interpreter finds the stand-in."""
    library = build(python)
    variables = dict(os.environ)
    variables["LD_PRELOAD"] = ":".join(filter(None, [str(library), variables.get("LD_PRELOAD")]))
    path = [str(library.parent), variables.get("LD_LIBRARY_PATH")]
    variables["LD_LIBRARY_PATH"] = ":".join(filter(None, path))
    return variables
