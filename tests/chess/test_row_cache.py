"""Rows whose checks were noted are the same rows, with the same labels, warnings and refusals; and
a row is checked again when anything changed."""
import warnings
from unittest.mock import patch
import pytest
from rookworld_nb.chess import dataset
from rookworld_nb.chess.dataset import load_rows

P = 'P: 8/5k2/r2p1bp1/P6p/2p5/PR4P1/3B1K1P/8 {} - - 0 44 M: {} E: -1.0 -0.8 B: {}'
WORST, BAD = [P.format('w', 'b3b7 b3b5', 'b3b7').replace('0 44', f'0 {n}')
              for n in range(44, 54)], ['P: nothing',
                                        P.format('w', 'b3b7 b3c5', 'b3b7')]


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch): monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path/'cache'))


def loaded(*call, **how):
    "Rows, what they are known by, and what was warned of; and how many rows were checked."
    asked, takes = [], dataset._Gate.takes
    with patch.object(
            dataset._Gate, 'takes',
            lambda gate, row: asked.append(row) or takes(gate, row)), warnings.catch_warnings(
                record=True) as caught:
        warnings.simplefilter('always')
        try: rows = load_rows(*call, **how)
        except ValueError as error: return str(error), len(asked)
    return (rows[:], repr(rows), rows.positions.tolist(), rows.of_kind('P')[:],
            rows.of_kind('A')[:], [str(w.message) for w in caught]), len(asked)


@pytest.mark.parametrize('how', [
    dict(limit=60, split='eval', env_ratio=0.5),
    dict(limit=60, seed=3),
    dict(limit=1100, split='train')
])
def test_positions(how):
    first, again, without = loaded('positions', cache=True,
                                   **how), loaded('positions', cache=True,
                                                  **how), loaded('positions', **how)
    assert first == without and first[1] >= 60 and again == (first[0], 0)
    assert loaded('positions', cache=True, **how | dict(seed=9))[1] == loaded(
        'positions', **how | dict(seed=9))[1] > 0


def test_text_with_a_defect_and_bad_rows(tmp_path):
    file = tmp_path/'rows.txt'
    file.write_text('\n'.join([*WORST, *BAD, *WORST]))
    first, again = (loaded(file, max_bad_rows=0.2, cache=True) for _ in range(2))
    assert first[1] == 22 and again == (
        first[0], 0) and 'best moves repaired' in first[0][1] and len(
            first[0][0]) == 10 and '2 of 22 rows left out' in first[0][-1][0]
    # the note does not excuse them
    assert 'cannot be read' in loaded(file, max_bad_rows=0.05, cache=True)[0] == loaded(file, max_bad_rows=0.05)[0]
    assert loaded(file, max_bad_rows=0.2, fix_best='never', cache=True)[0] == loaded(
        file, max_bad_rows=0.2, fix_best='never')[0] != first[0]
    file.write_text(file.read_text().replace('0 44', '1 44'))
    assert loaded(file, max_bad_rows=0.2, cache=True)[1] == 22


def test_shards(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq
    for name, rows in (('a', WORST[:5]), ('b', WORST[3:])):
        pq.write_table(pa.table({'text': rows}), tmp_path/f'{name}.parquet')
    first, again = (loaded(tmp_path, cache=True) for _ in range(2))
    assert first == loaded(tmp_path) and first[1] == 12 and again == (first[0], 0)
    (tmp_path/'b.parquet').unlink()
    assert len(loaded(tmp_path, cache=True)[0][0]) == 5


def test_nothing_is_noted_where_there_is_no_file(tmp_path):
    assert loaded(WORST, cache=True) == loaded(WORST) and not (tmp_path/'cache').exists()
    with patch.object(dataset, '_MOST_BYTES', 10):
        assert loaded('positions', limit=5, cache=True)[1] and loaded('positions', limit=5,
                                                                      cache=True)[0][5] == []
