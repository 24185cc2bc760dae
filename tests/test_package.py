"""The package as people get it: a source distribution, a wheel built from it, and a command that
runs from there."""
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from configparser import ConfigParser
from pathlib import Path
import pytest
from runs import clean

ROOT = Path(__file__).parents[1]

def settings():
    config = ConfigParser(delimiters=['='], interpolation=None)
    config.read(ROOT/'settings.ini', encoding='utf-8')
    return config['DEFAULT']


def build(kind, where, into):
    "What pip and uv call to build something."
    into.mkdir()
    done = subprocess.run([
        sys.executable, '-c',
        f'import sys; from setuptools import build_meta; build_meta.build_{kind}(sys.argv[1])',
        str(into)
    ], cwd=where, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return next(into.iterdir())


@pytest.fixture(scope='module')
def wheel(tmp_path_factory):
    "A wheel built from the source distribution, which is built from what git has of the package."
    tmp = tmp_path_factory.mktemp('package')
    source = tmp/'source'
    shutil.copytree(ROOT/'rookworld_nb', source/'rookworld_nb', ignore=shutil.ignore_patterns('__pycache__'))
    for name in ('settings.ini', 'setup.py', 'pyproject.toml', 'MANIFEST.in', 'README.md',
                 'LICENSE'):
        shutil.copy(ROOT/name, source)
    with tarfile.open(build('sdist', source, tmp/'sdist')) as tar:
        tar.extractall(tmp/'unpacked', filter='data')
    return build('wheel', next((tmp/'unpacked').iterdir()), tmp/'wheel')


def test_a_wheel_from_the_source_distribution(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as z:
        z.extractall(tmp_path/'site')
        found = {
            n.rpartition('/')[2]: z.read(n).decode()
            for n in z.namelist() if n.endswith(('.dist-info/METADATA', 'entry_points.txt'))
        }
        files = set(z.namelist())
    assert {
        f.relative_to(ROOT).as_posix()
        for f in (ROOT/'rookworld_nb').rglob('*') if f.is_file() and '__pycache__' not in f.parts
    } <= files
    said = settings()
    assert f'Version: {said["version"]}\n' in found[
        'METADATA'] and f'Requires-Python: >={said["min_python"]}\n' in found[
            'METADATA'] and 'Requires-Dist: torch' in found[
                'METADATA'] and 'Provides-Extra: gym' in found['METADATA']
    for script in said['console_scripts'].split(): assert script.replace('=', ' = ') in found['entry_points.txt']
    run = subprocess.run([
        sys.executable, '-m', 'rookworld_nb.apps.cli', 'eval', '--prompts', '1', '--threads', '1'
    ], cwd=tmp_path, env=clean(PYTHONPATH=str(tmp_path/'site')), capture_output=True, text=True)
    assert run.returncode == 0 and 'nano on ' in run.stdout, run.stderr


def test_what_stands_twice_says_the_same():
    with open(ROOT/'pyproject.toml', 'rb') as f: project = tomllib.load(f)['project']
    said, cited = settings(), (ROOT/'CITATION.cff').read_text('utf-8')
    assert (project['name'], project['requires-python']) == (said['lib_name'], f'>={said["min_python"]}')
    for line in (f'title: {said["title"]}', f'version: {said["version"]}',
                 f'repository-code: {said["git_url"]}', 'license: Apache-2.0'):
        assert f'{line}\n' in cited, line


@pytest.mark.slow
def test_a_notebook_saved_in_jupyterlab_leaves_the_house_in_order(tmp_path):
    "It writes a copy into a folder beside the notebook, which is no wing and no room."
    manager = pytest.importorskip('jupyter_server.services.contents.largefilemanager')
    shutil.copytree(
        ROOT, tmp_path/'house', ignore=shutil.ignore_patterns('.git', '__pycache__', '.venv',
                                                              '_docs', 'runs', 'sweeps'))
    contents = manager.LargeFileManager(root_dir=str(tmp_path/'house/nbs'))
    for name in ('04_task.ipynb', 'grpo/02_kl.ipynb', 'tutorials/own_reward.ipynb'):
        found = contents.get(name, content=True, type='notebook')
        contents.save(dict(type='notebook', content=found['content'], format='json'), name)
        contents.create_checkpoint(name)
    assert len([*(tmp_path/'house/nbs').rglob('*-checkpoint.ipynb')]) == 3
    done = subprocess.run([
        Path(sys.executable).with_name('nbdev_test'), '--path', 'nbs/99_house.ipynb'
    ], cwd=tmp_path/'house', env=clean(PYTHONPATH=str(tmp_path/'house')), capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stdout + done.stderr
