"What several test files share as fixtures."
import os
os.environ.setdefault('OMP_NUM_THREADS', '1')     # several processes test at once: one core each, and threads that wait do not spin
os.environ.setdefault('OMP_WAIT_POLICY', 'PASSIVE')
import shutil
import pytest


@pytest.fixture(scope='module')
def browser():
    "A headless Chromium."
    playwright = pytest.importorskip('playwright.sync_api', reason='the docs extra is not installed')
    program = next(filter(None, map(shutil.which, ('chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable'))), None)
    if program is None: pytest.skip('no Chromium here')
    with playwright.sync_playwright() as p:
        chromium = p.chromium.launch(executable_path=program)
        yield chromium
        chromium.close()
