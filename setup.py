"Everything here comes from settings.ini."
from configparser import ConfigParser
from pathlib import Path
from setuptools import find_packages, setup

config = ConfigParser(delimiters=['='], interpolation=None)
config.read('settings.ini', encoding='utf-8')
cfg = config['DEFAULT']
readme = Path('README.md')

setup(
    name=cfg['lib_name'],
    version=cfg['version'],
    description=cfg['description'],
    long_description=readme.read_text(encoding='utf-8') if readme.exists() else cfg['description'],
    long_description_content_type='text/markdown',
    url=cfg['git_url'],
    author=cfg['author'],
    author_email=cfg['author_email'],
    keywords=cfg['keywords'],
    license='Apache-2.0',
    packages=find_packages(include=['rookworld_nb', 'rookworld_nb.*']),
    package_data={'rookworld_nb': ['assets/*', 'assets/**/*']},
    install_requires=cfg['requirements'].split(),
    extras_require={extra: cfg[f'{extra}_requirements'].split() for extra in ('dev', 'play', 'bench', 'gym', 'verifiers', 'docs')},
    entry_points={
        'console_scripts': cfg['console_scripts'].split(),
        'nbdev': [f"{cfg['lib_name']}={cfg['lib_path']}._modidx:d"],
    },
    zip_safe=False,
)
