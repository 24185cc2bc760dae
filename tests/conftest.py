"What several test files share as fixtures."
import os
# several processes test at once: one core each, and threads that wait do not spin
os.environ.setdefault('OMP_NUM_THREADS', '1')
os.environ.setdefault('OMP_WAIT_POLICY', 'PASSIVE')
# the commands that the tests start would compile the package each time
os.environ.pop('PYTHONDONTWRITEBYTECODE', None)
import shutil
import pytest


def pytest_addoption(parser):
    parser.addoption('--slow', action='store_true', help='also the tests that are marked as slow')


def pytest_collection_modifyitems(config, items):
    if config.getoption('--slow'): return
    for item in items:
        if item.get_closest_marker('slow'):
            item.add_marker(pytest.mark.skip(reason='slow: runs with --slow'))


def pytest_configure(config):
    """Files go to the processes in their order. By the number of their tests, the long ones with
    few tests would come last, one process idle."""
    config.addinivalue_line(
        'markers', 'slow: takes long and looks at what others look at too; runs with --slow')
    if hasattr(config.option, 'loadscopereorder'): config.option.loadscopereorder = False


@pytest.fixture(scope='module')
def browser():
    "A headless Chromium."
    playwright = pytest.importorskip('playwright.sync_api', reason='the docs extra is not installed')
    program = next(
        filter(
            None,
            map(shutil.which,
                ('chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable'))), None)
    if program is None: pytest.skip('no Chromium here')
    with playwright.sync_playwright() as p:
        chromium = p.chromium.launch(executable_path=program)
        yield chromium
        chromium.close()
