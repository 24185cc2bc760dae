"The commands as a shell sees them: exit codes, one clear line, no heavy import for --help."
import os
import subprocess
import sys
from dataclasses import replace
import pytest
from rookworld_nb.apps.cli import read_config
from rookworld_nb.config import PretrainConfig, TrainConfig
from runs import call, call_alone

TINY = '--max_steps 1 --prompts_per_step 2 --group_size 2 --eval_prompts 4 --max_new_tokens 16'.split(
)


@pytest.mark.parametrize('command', [
    'train', 'pretrain', 'data', 'eval', 'report', 'export', 'sweep', 'compare', 'uci'
])
def test_help(command, tmp_path):
    code, out, err = call_alone(command, '--help', cwd=tmp_path)
    assert (code, err) == (0, '')
    assert f'usage: rookworld_{command}' in out and 'ROOKWORLD_<OPTION>' in out
    assert max(map(len, out.splitlines())) <= 100


def test_nothing_large_is_loaded_early(tmp_path):
    "No torch for --help, and not torch's compiler to open a model."
    code = (
        "import sys, rookworld_nb.apps.cli; assert 'torch' not in sys.modules; import os; assert "
        "os.environ['OMP_WAIT_POLICY']; "
        "from rookworld_nb.lm.loader import load_model; load_model('nano'); assert 'torch._dynamo' not in sys.modules"
    )
    bare = {k: v for k, v in os.environ.items() if not k.startswith('OMP_')}
    assert subprocess.run([sys.executable, '-c', code], cwd=tmp_path, timeout=60,
                          env=bare).returncode == 0


def test_comments_are_read_for_a_help_only():
    "They stand in the source, and reading them takes longer than the rest of a command."
    code = ("import rookworld_nb.config as c; c.docments = None; from rookworld_nb.apps.cli import read_config; "
            "read_config(c.TrainConfig, ['--steps', '3'], 'rookworld_train', {}, resume=True)")
    assert subprocess.run([sys.executable, '-c', code], timeout=60).returncode == 0


def bad(tmp_path, case):
    "Arguments that cannot work, each in its own way."
    if case == 'lr': return ['--lr', '-1']
    if case == 'model': return ['--model', 'nowhere']
    if case == 'device': return ['--device', 'cuda:99']
    if case == 'missing data': return ['--data', 'missing.parquet']
    if case == 'unreadable data':
        (tmp_path/'broken.parquet').write_bytes(b'PAR1 this is no parquet file')
        return ['--data', 'broken.parquet']
    if case == 'missing column':
        import pandas
        pandas.DataFrame({'other': ['x']}).to_parquet(tmp_path/'other.parquet')
        return ['--data', 'other.parquet']
    # a file stands where the directory should be: refused to every user, root included
    if case == 'output':
        (tmp_path/'file').write_text('')
        return ['--output_dir', 'file/run']
    if case == 'weights':
        from rookworld_nb.lm.loader import save_model
        from rookworld_nb.lm.model import GPT, PRESETS
        from rookworld_nb.lm.tokenizer import load_tokenizer
        tokenizer = load_tokenizer('chess')
        save_model(GPT(replace(PRESETS['tiny'], vocab_size=tokenizer.vocab_size)), tokenizer,
                   tmp_path/'corrupt')
        weights = next((tmp_path/'corrupt').glob('*.safetensors'))
        weights.write_bytes(weights.read_bytes()[:1000])
        return ['--model', 'corrupt']


@pytest.mark.parametrize('case', [
    'lr', 'model', 'device', 'missing data', 'unreadable data', 'missing column', 'output',
    'weights'
])
def test_bad_usage_is_one_line(case, tmp_path):
    code, out, err = call('train', *TINY, *bad(tmp_path, case), cwd=tmp_path)
    assert code == 2, err
    assert err.startswith('rookworld_train: ') and err.count('\n') == 1, err


def test_a_misspelled_variable_is_told(tmp_path):
    code, out, err = call('report', 'nowhere', cwd=tmp_path, ROOKWORLD_RUNN='x')
    assert code == 2
    assert err.splitlines() == [
        "ROOKWORLD_RUNN is ignored: no command has an option 'runn'; did you mean run?",
        'rookworld_report: nowhere is not a run directory'
    ]


@pytest.mark.parametrize('cls, name, hinted', [
    (TrainConfig, 'BATCH_SIZE', False), (TrainConfig, 'STEPS', True), (TrainConfig, 'MAX_STEPS', True),
    (PretrainConfig, 'MAX_STEPS', True), (PretrainConfig, 'BATCH_POSITIONS', False)
])
def test_a_prefix_is_advised_only_where_it_would_act(cls, name, hinted, capsys):
    "ROOKWORLD_BATCH_SIZE belongs to rookworld_pretrain and rookworld_eval, so rookworld_train does not read it."
    def made(environ): return read_config(cls, [], 'rookworld_x', environ, resume=True)[0]
    assert made({name: '8'}) == cls()
    assert (f'did you mean ROOKWORLD_{name}?' in capsys.readouterr().err) == hinted
    assert (made({f'ROOKWORLD_{name}': '8'}) != cls()) == hinted
