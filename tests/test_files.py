"""File systems that have less than a local disk: no locks, no permissions, no forcing of a
directory to the disk. And who may read what is written."""
import os
import shutil
import stat
import subprocess
import pytest
from runs import call, call_alone, some_positions

LESS = '''
import fcntl, os, stat
def flock(*_): raise OSError(LOCKS, os.strerror(LOCKS))
def chmod(path, *_, **__): raise PermissionError(1, 'Operation not permitted', str(path))
def fsync(fd, real=os.fsync):
    if stat.S_ISDIR(os.fstat(fd if isinstance(fd, int) else fd.fileno()).st_mode): raise OSError(22, 'Invalid argument')
    return real(fd)
fcntl.flock, os.chmod, os.fsync = flock, chmod, fsync
'''
SMALL = '--data positions.parquet --max_steps 2 --prompts_per_step 2 --group_size 2 --eval_prompts 2 --max_refills 0 --max_new_tokens 20 --threads 1'.split(
)
SPACE = '''
objective = "sampled all reward"
[base]
data = "positions.parquet"
max_steps = 1
prompts_per_step = 2
group_size = 2
eval_prompts = 2
max_new_tokens = 20
max_refills = 0
[space]
learning_rate = [1e-5, 1e-4]
'''


COMMANDS = { # and which of the three it asks for
    ('train', *SMALL, '--output_dir', 'run'): 'flock fsync chmod',
    ('train', '--resume', 'run', '--max_steps', '3'): 'flock fsync chmod',
    ('pretrain', '--data', 'positions.parquet', '--max_steps', '2', '--batch_size', '8', '--block_rows', '16', '--workers', '0', '--threads', '1', '--save_every', '1', '--output_dir', 'first'): 'flock fsync chmod',
    ('pretrain', '--branch_from', 'first', '--data', 'positions.parquet', '--max_steps', '3', '--batch_size', '8', '--block_rows', '16', '--workers', '0', '--threads', '1', '--output_dir', 'second'): 'flock fsync chmod',
    ('data', '--kind', 'castling', '--positions', '20', '--output', 'castling.parquet'): 'flock fsync chmod',
    ('sweep', '--space', 'lr.toml', '--trials', '1', '--workers', '1'): 'flock fsync chmod',
    ('export', '--run', 'run', '--output', 'exported'): 'chmod', ('report', 'run'): 'fsync chmod'
}


def test_every_command_goes_on_and_says_once_what_is_missing(tmp_path):
    some_positions(tmp_path)
    (tmp_path/'lr.toml').write_text(SPACE, encoding='utf-8')
    (tmp_path/'less').mkdir()
    for args, expected in COMMANDS.items():
        less = LESS.replace('LOCKS', '95' if args[0] == 'data' else '37')
        (tmp_path/'less'/'sitecustomize.py').write_text(less, encoding='utf-8')
        if args[0] != 'sweep': code, _, err = call(*args, cwd=tmp_path, before=less)
        else:
            code, _, err = call_alone(*args, cwd=tmp_path, PYTHONPATH=os.pathsep.join(
                [str(tmp_path/'less'), os.environ.get('PYTHONPATH', '')])) # its trials, too
        assert code == 0, (args, err)
        assert [err.count(f'({what})') for what in ('flock', 'fsync', 'chmod')
                ] == [int(what in expected) for what in ('flock', 'fsync', 'chmod')], (args, err)


@pytest.fixture
def denying(tmp_path):
    "A directory whose file system refuses `chmod`: bindfs 1.14.7, mounted with --chmod-deny."
    program, (real, mount) = shutil.which('bindfs'), (tmp_path/'real', tmp_path/'mount')
    for folder in (real, mount): folder.mkdir()
    if not program or subprocess.run([program, '--chmod-deny', '--chown-deny', real, mount],
                                     capture_output=True).returncode:
        pytest.skip('no bindfs, or it may not mount')
    yield mount
    subprocess.run(['fusermount', '-u', mount], check=True)


@pytest.mark.slow
def test_every_command_goes_on_where_chmod_is_denied(denying):
    some_positions(denying)
    (denying/'lr.toml').write_text(SPACE, encoding='utf-8')
    with pytest.raises(PermissionError): (denying/'lr.toml').chmod(0o600)
    for args in COMMANDS:
        code, _, err = call(*args, cwd=denying)
        assert code == 0 and err.count('(chmod)') == 1, (args, err)


def test_the_umask_says_who_may_read(tmp_path):
    """The library that writes weights makes files for their owner alone: a second user could not go
    on with a checkpoint."""
    some_positions(tmp_path)
    before = 'import os; os.umask(0o027)'
    for args in (['train', *SMALL, '--output_dir', 'run'], [
            'pretrain', '--data', 'positions.parquet', '--max_steps', 2, '--batch_size', 8,
            '--block_rows', 16, '--workers', 0, '--threads', 1, '--output_dir', 'first'
    ], ['export', '--run', 'run', '--output', 'exported']):
        code, _, err = call(*args, cwd=tmp_path, before=before)
        assert code == 0, err
    files = [
        p for folder in ('run', 'first', 'exported') for p in (tmp_path/folder).rglob('*')
        if p.is_file()
    ]
    assert sum(p.suffix == '.safetensors' for p in files) >= 6
    assert {p.name: oct(stat.S_IMODE(p.stat().st_mode))
            for p in files} == {p.name: '0o640'
                                for p in files}
