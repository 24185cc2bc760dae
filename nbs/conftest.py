"Every notebook is one test: `pytest nbs` runs what `nbdev_test` runs, each in a process of its own, and counts."
import os
import signal
import subprocess
import sys
from pathlib import Path
import pytest

ROOT = Path(__file__).parent.parent
TIMEOUT = int(os.environ.get('NB_TIMEOUT', 300))  # seconds a notebook may take
FLAGS = os.environ.get('NB_FLAGS', '')            # cells to run although they are flagged, e.g. NB_FLAGS="slow engine"
QUIET = {'OMP_WAIT_POLICY': 'PASSIVE', 'OMP_NUM_THREADS': '1', 'MPLBACKEND': 'Agg'} | ({} if 'net' in FLAGS.split() else {'HF_HUB_OFFLINE': '1'})
RUN = '''
import sys
from pathlib import Path
from nbdev.config import get_config
from nbdev.test import test_nb as run_notebook
config = get_config()
passed, _ = run_notebook(Path(sys.argv[1]), config.tst_flags.split(), sys.argv[2].split(), basepath=config.config_path)
sys.exit(not passed)
'''


def pytest_collect_file(file_path, parent):
    hidden = any(part[0] in '_.' for part in file_path.relative_to(ROOT).parts)
    if file_path.suffix == '.ipynb' and not hidden: return NotebookFile.from_parent(parent, path=file_path)


class NotebookFile(pytest.File):
    def collect(self): yield Notebook.from_parent(self, name=self.path.stem)


class NotebookError(Exception): pass


class Notebook(pytest.Item):
    def runtest(self):
        process = subprocess.Popen([sys.executable, '-c', RUN, str(self.path), FLAGS], cwd=ROOT, env=QUIET | os.environ, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        try: output, _ = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the engines and workers it started, too
            process.communicate()
            raise NotebookError(f'{self.path.name} took more than {TIMEOUT} s') from None
        if process.returncode: raise NotebookError(output)

    def repr_failure(self, excinfo): return str(excinfo.value) if isinstance(excinfo.value, NotebookError) else super().repr_failure(excinfo)
    def reportinfo(self): return self.path, None, f'notebook {self.path.name}'
