"Makes the chess board that `nbs/apps/06_widget.ipynb` shows: one file from the modules of cm-chessboard, fetched with npm. Its words stay as they are; imports and exports go."
import hashlib
import re
import subprocess
import tarfile
import tempfile
from pathlib import Path

VERSION, SHA256 = '8.15.1', 'c2328d7b1188f4c1a293039ad3f3c8a61026af451a1d9cf9210517ce49ebb535'   # of the package as npm packs it
MODULES = ('lib/Svg lib/Utils model/Extension model/Position model/ChessboardState view/VisualMoveInput view/PositionAnimationsQueue '
           'view/ChessboardView Chessboard extensions/arrows/Arrows extensions/promotion-dialog/PromotionDialog').split()   # each below what it needs
OUT = Path(__file__).parent.parent/'rookworld_nb/assets/board'


def plain(module):
    "A module without imports and exports; what it exports keeps its name."
    module = re.sub(r'^import .*\n', '', module, flags=re.M)
    module = re.sub(r'^export \{.*\n', '', module, flags=re.M)
    return re.sub(r'^export ', '', module, flags=re.M).strip()


with tempfile.TemporaryDirectory() as folder:
    subprocess.run(['npm', 'pack', '--silent', f'cm-chessboard@{VERSION}'], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    packed, = Path(folder).glob('*.tgz')
    found = hashlib.sha256(packed.read_bytes()).hexdigest()
    if found != SHA256: raise SystemExit(f'{packed.name} has the hash {found}, not {SHA256}')
    with tarfile.open(packed) as package:
        read = lambda name: package.extractfile(f'package/{name}').read().decode()
        parts = [f'// cm-chessboard {VERSION}, MIT (see LICENSE): these modules as one, by .ci/make_board.py']
        parts += [f'// {name}.js\n{plain(read(f"src/{name}.js"))}' for name in MODULES]
        OUT.mkdir(parents=True, exist_ok=True)
        (OUT/'cm-chessboard.js').write_text('\n\n'.join(parts) + '\n')
        (OUT/'LICENSE').write_text(read('LICENSE'))
