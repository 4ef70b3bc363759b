"""A picture of Neovim with the language server, drawn from what it shows in a terminal."""

import io
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from rich.ansi import AnsiDecoder
from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI

MISSING = "The picture of an editor is of Neovim in tmux: apt-get install neovim tmux."
COLUMNS, ROWS = 118, 26
FIRST_LINE = 29
MARK = "15.36 ms · 2.87 GiB saved"
WAIT_S = 120
FONT_FACE = re.compile(r"@font-face \{.*?\}", re.DOTALL)
"""Is fetched from elsewhere: the picture is to be self-contained."""

INIT = """\
vim.o.number, vim.o.wrap, vim.o.swapfile, vim.o.termguicolors = true, false, false, true
vim.o.ruler, vim.o.showmode, vim.o.laststatus, vim.o.signcolumn = false, false, 0, "no"
vim.cmd([[colorscheme desert
  highlight Normal guibg=NONE | highlight NonText guibg=NONE
  highlight LineNr guifg=#808080 | highlight LspCodeLens guifg=#8fb4d8]])
vim.api.nvim_create_autocmd("FileType", {
  pattern = "python",
  callback = function()
    local client = vim.lsp.start_client({
      name = "tally",
      cmd = { vim.env.TALLY_PYTHON, "-m", "torchtally", "lsp" },
      root_dir = vim.fn.getcwd(),
      init_options = { gpu = "H100-SXM" },
    })
    vim.lsp.buf_attach_client(0, client)
  end,
})
vim.api.nvim_create_autocmd("User", {
  pattern = "LspProgressUpdate",
  callback = function() vim.lsp.codelens.refresh() end,
})
"""


def is_there() -> bool:
    """Whether the programs are installed."""
    return bool(shutil.which("nvim") and shutil.which("tmux"))


def neovim(script: Path, folder: Path) -> str:
    """The SVG of a script in Neovim, once it was saved, in a folder with nothing else."""
    (folder / "init.lua").write_text(INIT)
    shutil.copy(script, folder)
    variables = {
        **os.environ, "TALLY_PYTHON": sys.executable, "TMUX_TMPDIR": str(folder), "LANG": "C.UTF-8",
        "XDG_CACHE_HOME": str(folder / "cache"), "XDG_STATE_HOME": str(folder / "state"),
        "TERM": "xterm-256color",
    }  # fmt: skip
    variables.pop("TMUX", None)

    def tmux(*words: str) -> str:
        done = subprocess.run(
            ("tmux", "-f", os.devnull, "-L", "tally", *words),
            cwd=folder, env=variables, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout

    command = f"nvim -u init.lua +{FIRST_LINE} {script.name}"
    tmux("new-session", "-d", "-x", str(COLUMNS), "-y", str(ROWS), command)
    try:
        tmux("set", "-sa", "terminal-overrides", ",*:Tc")
        tmux("send-keys", "zt")
        deadline_s = time.monotonic() + WAIT_S
        while MARK not in (shown := tmux("capture-pane", "-e", "-p")):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"no mark {MARK!r} in:\n{shown}")
            tmux("send-keys", ":silent write", "Enter")  # again, until the server has begun
            time.sleep(20)
        return drawn(shown)
    finally:
        tmux("kill-server")


def drawn(shown: str) -> str:
    """What a terminal shows, with its colours, as an SVG."""
    console = Console(
        record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, highlight=False,
        color_system="truecolor", legacy_windows=False,
    )  # fmt: skip
    for line in list(AnsiDecoder().decode(shown))[: ROWS - 1]:
        console.print(line, soft_wrap=True, crop=True)
    svg = console.export_svg(title="nvim train_gpt.py", theme=DIMMED_MONOKAI, unique_id="nvim")
    return FONT_FACE.sub("", svg)
