"""A small server that speaks as much of the Hugging Face hub's protocol as its client asks for,
with faults to order."""
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

LARGE = 100_000    # bytes from which a file is served by the /cdn/, behind a redirect
API = re.compile(
    r'/api/(models|datasets)/([^/]+/[^/]+)(?:/(revision|tree|paths-info)/([^/]+)(?:/(.+))?)?')
FILE = re.compile(r'/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)')
CDN = re.compile(r'/cdn/(\w+)')


@dataclass
class Repository:
    "A directory that is served as a repository with one commit."
    directory: Path
    token: str|None = None                                 # needed to see it (private)
    gated: bool = False                                    # visible, but nobody may fetch
    revisions: tuple = ('main',)

    @property
    def commit(self): return hashlib.sha1(str(self.directory).encode()).hexdigest()

    def files(self):
        return sorted(
            p.relative_to(self.directory).as_posix() for p in self.directory.rglob('*')
            if p.is_file())


@dataclass
class Fault:
    "What goes wrong with requests whose method and path match a pattern."
    pattern: str
    status: int|None = None                                # answer this, instead of the file
    # close the connection after so many bytes of the body
    cut: int|None = None
    times: float = float('inf')                            # how often, before all is well again
    headers: dict = field(default_factory=dict)


class HubServer:
    "`with HubServer() as hub`: repositories at `hub.url`, every request in `hub.log`."
    def __init__(self):
        self.repositories, self.faults, self.log, self.lock, self._tags = {}, [], [], threading.Lock(
        ), {}

    def add(self, name, directory, kind='model', **how):
        self.repositories[kind, name] = Repository(Path(directory), **how)
    def fail(self, pattern, **how): self.faults.append(Fault(pattern, **how))

    def fault(self, request):
        "The fault that is due for this request."
        with self.lock:
            for f in self.faults:
                if f.times > 0 and re.search(f.pattern, request):
                    f.times -= 1
                    return f

    def etag(self, path):
        "sha256 of a file, computed once; the address of its content on the /cdn/."
        if path not in self._tags: self._tags[path] = hashlib.sha256(path.read_bytes()).hexdigest()
        return self._tags[path]

    def sent(self, pattern):
        return sum(r['sent'] for r in self.log if re.search(pattern, r['request']))

    def __enter__(self):
        self.server = ThreadingHTTPServer(('127.0.0.1', 0),
                                          type('Handler', (Handler, ), {'hub': self}))
        self.server.daemon_threads = True
        # the files lie on another host
        self.url, self.cdn = (f'http://{host}:{self.server.server_port}'
                              for host in ('127.0.0.1', 'localhost'))
        threading.Thread(target=self.server.serve_forever, kwargs={'poll_interval': 0.05},
                         daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    hub = None

    def log_message(self, *_): pass
    def do_GET(self): self.answer()
    def do_HEAD(self): self.answer()
    def do_POST(self): self.answer()

    def answer(self):
        path, body = unquote(urlsplit(self.path).path), self.rfile.read(int(self.headers.get('Content-Length') or 0)).decode()
        asked = dict(request=f'{self.command} {path}', range=self.headers.get('Range'),
                     token=self.headers.get('Authorization'))
        self.entry = asked | dict(status=None, sent=0)
        self.hub.log.append(self.entry)
        self.due = self.hub.fault(self.entry['request'])
        if self.due and self.due.status: self.send(self.due.status, headers=self.due.headers)
        elif m := CDN.fullmatch(path):
            self.send_file(next(p for p, tag in self.hub._tags.items() if tag == m[1]))
        elif m := API.fullmatch(path):
            self.api(m[1].removesuffix('s'), m[2], m[3], m[4], m[5] or '', body)
        elif m := FILE.fullmatch(path): self.file('dataset' if m[1] else 'model', m[2], m[3], m[4])
        else: self.send(404)

    def repository(self, kind, name, revision, fetch=False):
        "The repository of a request, or None after it has been refused."
        repo, given = self.hub.repositories.get((kind, name)), (self.headers.get('Authorization')
                                                                or '').removeprefix('Bearer ')
        if not repo: return self.refuse(404, 'RepoNotFound', 'Repository not found')
        if repo.token and not given: return self.refuse(401, 'RepoNotFound', 'Repository not found')
        if repo.token and given != repo.token: return self.refuse(401, None, 'Invalid credentials '
                                                                             'in Authorization header')
        if repo.gated and fetch:
            return self.refuse(
                403, 'GatedRepo',
                f'Access to model {name} is restricted and you are not in the authorized list.')
        if revision not in (None, repo.commit, *repo.revisions):
            return self.refuse(404, 'RevisionNotFound', f'Invalid rev id: {revision}')
        return repo

    def refuse(self, status, code, message):
        self.send(status,
                  headers={'X-Error-Message': message} | ({'X-Error-Code': code} if code else {}))

    def api(self, kind, name, what, revision, inside, body):
        repo = self.repository(kind, name, revision)
        if not repo: return
        if what in (None, 'revision'):
            siblings = [dict(rfilename=f) for f in repo.files()]
            return self.send_json(
                dict(id=name, sha=repo.commit, private=bool(repo.token), gated=False, tags=[],
                     siblings=siblings))
        wanted = ([f for f in repo.files()
                   if f.startswith(inside)] if what == 'tree' else parse_qs(body).get('paths', []))
        folders = sorted(
            {str(parent)
             for f in repo.files()
             for parent in Path(f).parents if str(parent) != '.'})
        query = parse_qs(urlsplit(self.path).query)
        if what == 'tree' and query.get('recursive', ['false'])[0].lower() != 'true':
            wanted, folders = ([f for f in found if str(Path(f).parent) == (inside or '.')] for found in (wanted, folders))
        self.send_json([
            dict(type='directory', path=f, oid='0'*40)
            for f in folders if what == 'tree' or f in wanted
        ] + [
            dict(type='file', path=f, oid='0'*40, size=(repo.directory/f).stat().st_size)
            for f in wanted if f in repo.files()
        ])

    def file(self, kind, name, revision, file):
        repo = self.repository(kind, name, revision, fetch=True)
        if not repo: return
        path = repo.directory/file
        commit = {'X-Repo-Commit': repo.commit}
        if file not in repo.files():
            return self.send(
                404, headers=commit
                | {'X-Error-Code': 'EntryNotFound', 'X-Error-Message': 'Entry not found'})
        tag, size = self.hub.etag(path), path.stat().st_size
        if size < LARGE: return self.send_file(path, commit | {'ETag': f'"{tag}"'})
        self.send(
            302, headers=commit | {
                'Location': f'{self.hub.cdn}/cdn/{tag}', 'X-Linked-ETag': f'"{tag}"',
                'X-Linked-Size': str(size)
            })

    def send_file(self, path, headers=None):
        "The file, or the asked range of it."
        size, asked = path.stat().st_size, re.fullmatch(r'bytes=(\d+)-(\d*)', self.headers.get('Range') or '')
        start, end = ((int(asked[1]), min(int(asked[2] or size - 1), size - 1) + 1) if asked else (0, size))
        headers = ((headers or {}) | {'Accept-Ranges': 'bytes'} |
                   ({'Content-Range': f'bytes {start}-{end - 1}/{size}'} if asked else {}))
        with open(path, 'rb') as f:
            f.seek(start)
            self.send(206 if asked else 200, f, end - start, headers)

    def send_json(self, content):
        self.send(200, json.dumps(content).encode(), headers={'Content-Type': 'application/json'})

    def send(self, status, content=b'', length=None, headers=None):
        "One answer; a due cut ends it early, and the connection with it."
        length = len(content) if length is None else length
        self.entry['status'] = status
        self.send_response(status)
        for key, value in ({'Content-Length': str(length)} | (headers or {})).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == 'HEAD' or not length: return
        cut = self.due.cut if self.due and self.due.cut is not None else length
        left = min(cut, length)
        while left > 0:
            chunk, content = ((content[:left], content[left:]) if isinstance(content, bytes) else
                              (content.read(min(left, 1 << 20)), content))
            self.wfile.write(chunk)
            self.entry['sent'] += len(chunk)
            left -= len(chunk)
        if cut < length: self.close_connection = True
