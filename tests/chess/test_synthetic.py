"What rookworld_data says to a directory that something else has been in."
import pytest
from rookworld_nb.chess.synthetic import make_rows
from rookworld_nb.config import DataConfig


@pytest.mark.parametrize('text, said', [
    ('{}', 'does not list its files'), ('[]', 'does not list its files'),
    ('{"files": [1]}', 'does not list its files'), ('{"files": {}}', 'does not list its files'),
    ('{"files": [{"name": "a", "rows": 1, "sha256": ""}]}', 'does not say its number of positions'),
    ('[', 'is not JSON'), ('['*100_000, 'is not JSON')
])
def test_a_manifest_of_something_else_is_refused_and_stays(text, said, tmp_path):
    (tmp_path/'manifest.json').write_text(text)
    with pytest.raises(ValueError, match=f'manifest.json {said}.*: remove .* or choose another output'):
        make_rows(DataConfig(kind='castling', positions=5, output=str(tmp_path)))
    assert (tmp_path/'manifest.json').read_text() == text
