"""Faults by rule: what a mistaken line might say instead, found in the syntax tree of a cell and
put into its text."""
import ast
import contextlib
import copy
import hashlib
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from types import MappingProxyType


def short(*texts): return hashlib.sha256('\0'.join(texts).encode()).hexdigest()[:12]


# The operators: each gives the nodes that might stand in the place of a node.

OPPOSITE = {
    ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is
}
EDGE = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
ARITHMETIC = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
OTHER = dict(p for a, b in [('mean', 'sum'), ('min', 'max'), ('minimum', 'maximum'), (
    'amin', 'amax'), ('any',
                      'all'), ('argmin',
                               'argmax'), ('floor',
                                           'ceil'), ('zeros',
                                                     'ones'), ('zeros_like',
                                                               'ones_like'), ('cumsum', 'cumprod')]
             for p in ((a, b), (b, a)))
ENDS = dict(p for a, b in [('before', 'after'), (
    'startswith', 'endswith'), ('removeprefix', 'removesuffix'), ('first', 'last'), (
        'low', 'high'), ('find', 'rfind'), ('lstrip',
                                            'rstrip'), ('left',
                                                        'right'), ('prompt',
                                                                   'completion'), ('start', 'end')]
            for p in ((a, b), (b, a)))
NO_ORDER = {'min', 'max', 'minimum', 'maximum', 'isinstance', 'equal', 'allclose', 'logaddexp', 'gcd'}
CALMING = {
    'detach', 'masked_fill', 'masked_fill_', 'clamp', 'clamp_', 'abs', 'sort', 'sorted', 'double',
    'float', 'strip', 'lower', 'flip', 'round'
}
PLAIN = ast.Name | ast.Attribute | ast.Subscript


def but(node, **changes):
    "A copy of the node with some fields changed."
    node = copy.deepcopy(node)
    for name, value in changes.items(): setattr(node, name, value)
    return node


def exchanged(items, may):
    "The list with two neighbours exchanged, in every way that `may` allows."
    for i, (a, b) in enumerate(zip(items, items[1:])):
        if ast.dump(a) != ast.dump(b) and may(a, b): yield [*items[:i], b, a, *items[i + 2:]]


def of_one_type(a, b):
    "Names of one annotation where both have one, numbers among themselves."
    if isinstance(a, ast.Constant) and isinstance(b, ast.Constant):
        return type(a.value) is type(b.value)
    if not (isinstance(a, PLAIN) and isinstance(b, PLAIN)): return False
    return len({getattr(n, 'kind', None) for n in (a, b)} - {None}) < 2


def called(node): return (getattr(node.func, 'attr', getattr(node.func, 'id', '')) if isinstance(node, ast.Call) else '')


def is_text(node):
    return (isinstance(node, ast.JoinedStr)
            or isinstance(node, ast.Constant) and isinstance(node.value, str))


def swap(node):
    "Two arguments, operands or elements of one type change places."
    match node:
        case ast.Call() if called(node) not in NO_ORDER:
            for args in exchanged(node.args, of_one_type): yield but(node, args=args)
        case ast.BinOp(op=ast.Sub() | ast.Div() | ast.FloorDiv() | ast.Mod() | ast.Pow()
                       | ast.MatMult()) if not is_text(node.left) and not is_text(node.right):
            yield but(node, left=node.right, right=node.left)
        case ast.Tuple(): yield from (but(node, elts=e) for e in exchanged(node.elts, of_one_type))
        case ast.IfExp(): yield but(node, body=node.orelse, orelse=node.body)


def neighbour(node):
    "A keyword gets the value of the keyword beside it."
    if not isinstance(node, ast.Call): return
    for a, b in zip(node.keywords, node.keywords[1:]):
        if a.arg and b.arg and ast.dump(a.value) != ast.dump(b.value):
            yield but(
                node, keywords=[
                    but(k, value=b.value if k is a else a.value if k is b else k.value)
                    for k in node.keywords
                ])


def renamed(node, names):
    match node:
        case ast.Name(id=name) if name in names: yield but(node, id=names[name])
        case ast.Attribute(attr=name) if name in names: yield but(node, attr=names[name])


def flip(node):
    "A comparison or a switch is turned round."
    match node:
        case ast.Compare(ops=[op]) if type(op) in OPPOSITE:
            yield but(node, ops=[OPPOSITE[type(op)]()])
        case ast.Constant(value=bool(value)): yield ast.Constant(not value)
        case ast.BoolOp(op=op):
            yield but(node, op=ast.And() if isinstance(op, ast.Or) else ast.Or())


def edge(node):
    "A comparison takes in its limit, or leaves it out."
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            if type(op) in EDGE:
                yield but(node, ops=[*node.ops[:i], EDGE[type(op)](), *node.ops[i + 1:]])


def undo(node):
    "A `not`, a `~` or a minus is dropped."
    if isinstance(node, ast.UnaryOp) and not isinstance(node.operand, ast.Constant):
        yield node.operand


def number(node):
    "One more, one less; a float doubled."
    match node:
        case ast.Constant(value=bool()): pass
        case ast.Constant(value=int(n)):
            yield from (ast.Constant(n + 1), ast.Constant(n - 1)) if n else [ast.Constant(1)]
        case ast.Constant(value=float(x)): yield ast.Constant(x*2 if x else 1.0)


def arithmetic(node):
    "Plus for minus, times for divided by."
    match node:
        case ast.BinOp(
            op=op) if type(op) in ARITHMETIC and not is_text(node.left) and not is_text(node.right):
            yield but(node, op=ARITHMETIC[type(op)]())
        case ast.AugAssign(op=op) if type(op) in ARITHMETIC:
            yield but(node, op=ARITHMETIC[type(op)]())


def drop(node):
    "A `detach`, a `no_grad`, a mask, a clamp, a condition or a clause is left out."
    match node:
        case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in CALMING: yield value
        case ast.Call(func=ast.Name(id='sorted' | 'abs' | 'round'), args=[value, *_]): yield value
        case ast.Attribute(attr='no_grad' | 'inference_mode'): yield but(node, attr='enable_grad')
        case ast.BoolOp(values=values):
            yield from (but(node, values=[v for v in values
                                          if v is not out]) if len(values) > 2 else
                        (set(values) - {out}).pop() for out in values)
        case ast.BinOp(left=left, op=ast.BitAnd() | ast.BitOr(), right=right): yield from (left, right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right) if 'mask' in ast.unparse(right): yield left
        case ast.comprehension(ifs=[*_, _]): yield but(node, ifs=node.ifs[:-1])
        case ast.Call(func=ast.Attribute(value=ast.Name(id='torch'), attr='where'), args=[_, a, b]):
            yield from (a, b)


def skip(node):
    "A line does nothing."
    if isinstance(node, ast.AugAssign) or isinstance(node, ast.Expr) and isinstance(
            node.value, ast.Call) and called(node.value) not in ('print', 'warn'):
        yield ast.Pass()


def other(node):
    "`mean` for `sum`, `min` for `max`, `any` for `all`."
    yield from renamed(node, OTHER)


def ends(node):
    "The last for the first, `after` for `before`."
    yield from renamed(node, ENDS)
    match node:
        case ast.Subscript(slice=ast.Constant(value=0)): yield but(node, slice=ast.Constant(-1))
        case ast.Subscript(slice=ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=1))): yield but(node, slice=ast.Constant(0))
        case ast.Slice(lower=lower, upper=upper, step=None) if (lower is None) != (upper is None):
            yield but(node, lower=upper, upper=lower)


# Siblings: what a name might be mistaken for. They stand on the nodes of a function when the operators come.

SETS = ast.Assign | ast.AugAssign
ROLES = dict(mean=['max'], max=['mean'], last=['mean', 'max'], first=['last'], raw=['shaped'], shaped=['raw'])


def loads(node): return {ast.unparse(n) for n in ast.walk(node) if isinstance(n, PLAIN) and isinstance(n.ctx, ast.Load)}


def kinds(value):
    "What a value has in common with others: the function that makes it, what it is made from, or its type."
    match value:
        case ast.Call(func=ast.Attribute(value=base)): return {called(value)} | kinds(base)
        case ast.Call(args=[ast.Name() as first, *_]): return {called(value)} | kinds(first)
        case ast.Call(): return {called(value)}
        case ast.BinOp(left=a, right=b) | ast.IfExp(body=a, orelse=b): return kinds(a) | kinds(b)
        case ast.Constant(value=x): return {type(x).__name__}
        case _: return {ast.unparse(value) if isinstance(value, PLAIN) else type(value).__name__} - {'self'}


def bound(scope):
    "{name: [line from which it stands, its kinds]} of parameters and locals."
    found = {}
    def add(target, line, its):
        for t in getattr(target, 'elts', [target]):
            if isinstance(t, ast.Name): found.setdefault(t.id, [line, {t.id, t.id.split('_')[-1]}])[1].update(its)
    def visit(node):
        match node:
            case ast.arg(arg=name, annotation=a): add(ast.Name(name), 0, {ast.unparse(a)} if a else set())
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                for t, v in zip(targets, values): add(t, node.end_lineno, kinds(v))
            case ast.Assign(targets=targets, value=value):
                its = {ast.unparse(value)} if isinstance(targets[0], ast.Tuple) else kinds(value)
                for t in targets: add(t, node.end_lineno, its)
            case ast.For(target=target, iter=value): add(target, node.lineno, {ast.unparse(value)})
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.FunctionDef | ast.ClassDef | ast.expr): visit(child)
    visit(scope)
    return found


def with_siblings(tree, fields):
    "The tree, its names, fields and keys marked with their siblings, a line with the one that it might come after."
    def mark(node, part, values):
        node.siblings = getattr(node, 'siblings', {}) | dict.fromkeys((part, v) for v in values)
    def alike(a, b): return a != b and not (fields.get(a) and fields.get(b) and fields[a].isdisjoint(fields[b]))
    for f in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)):
        names, records, nodes = bound(tree) | bound(f), defaultdict(list), [*ast.walk(f)]
        methods = {n.func for n in nodes if isinstance(n, ast.Call)}
        own = {getattr(n, 'id', getattr(n, 'arg', ''))
               for n in nodes if isinstance(getattr(n, 'ctx', n), ast.Store | ast.arg)}
        for n in nodes:
            for c in getattr(n, 'generators', ()):   # the names of one `for a, b in ...`
                both = [t.id for t in getattr(c.target, 'elts', ()) if isinstance(t, ast.Name)]
                for m in ast.walk(n):
                    if isinstance(m, ast.Name) and isinstance(m.ctx, ast.Load) and m.id in both:
                        mark(m, 'id', [x for x in both if x != m.id])
            match n:
                case ast.Name(id=name, ctx=ast.Load()) if name in names:
                    mark(n, 'id', [o for o, (line, its) in names.items()
                                   if o != name and line < n.lineno and its & names[name][1]])
                case ast.Attribute(value=base, attr=name, ctx=ast.Load()) if n not in methods:
                    records[ast.unparse(base)].append((name, n))
                case ast.Subscript(value=base, slice=ast.Constant(value=str(name)), ctx=ast.Load()):
                    records[ast.unparse(base) + '[]'].append((name, n))
                case ast.FunctionDef(body=body) | ast.For(body=body) | ast.If(body=body) | ast.With(body=body):
                    for a, b in zip(body, body[1:]):
                        if isinstance(a, SETS) and isinstance(b, SETS | ast.Expr):
                            stored = {ast.unparse(t) for t in ast.walk(a) if isinstance(getattr(t, 'ctx', 0), ast.Store)}
                            used = stored & loads(b)
                            if used and all(names.get(x, [0])[0] < a.lineno for x in used): a.later = b
        for base, uses in records.items():
            if re.split(r'[.[]', base)[0] in own:
                for name, n in uses:
                    part, new = ('attr', str) if isinstance(n, ast.Attribute) else ('slice', ast.Constant)
                    mark(n, part, [new(o) for o in dict.fromkeys(o for o, _ in uses) if alike(o, name)])
    return tree


def sibling(node):
    """Another name of the same role in the same function: a parameter of that annotation, a local made
    alike, a field of the same record; the maximum for the mean; one side of a sum; the value from
    before an assignment."""
    yield from (but(node, **{part: value}) for part, value in getattr(node, 'siblings', ()))
    match node:
        case ast.Attribute(attr=name) if name in ROLES: yield from (but(node, attr=other) for other in ROLES[name])
        case ast.Constant(value=str(name)) if name in ROLES: yield from map(ast.Constant, ROLES[name])
        case ast.BinOp(left=a, op=ast.Add(), right=b) if not {type(a), type(b)} & {ast.Constant, ast.JoinedStr}:
            yield from (a, b)
        case ast.List(elts=[ast.Starred(), ast.Starred()]): yield from (but(node, elts=[e]) for e in node.elts)
        case ast.Assign(targets=[target], value=value) if ast.unparse(target) in loads(value): yield ast.Pass()
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
            for i, (t, v) in enumerate(zip(targets, values)):
                if ast.unparse(t) in loads(v): yield but(node, value=ast.Tuple([*values[:i], t, *values[i + 1:]]))
    if hasattr(node, 'later'): yield ast.Name(f'{ast.unparse(node.later)}; {ast.unparse(node)}', until=node.later)


OPERATORS = {
    f.__name__: f
    for f in (swap, neighbour, flip, edge, undo, number, arithmetic, drop, skip, other, ends, sibling)
}


@dataclass(frozen=True)
class Mutant:
    "One fault: in which room and cell, by which operator, and what the line says instead."
    id: str; room: str; cell: int; operator: str; before: str; after: str; source: str
    def __str__(self): return f'{self.id}\n    - {self.before}\n    + {self.after}'


def places(node):
    """The nodes where a fault may stand: no annotation, import, decorator, message, help text, nor
    what only shows."""
    if isinstance(node, ast.Import | ast.ImportFrom | ast.Raise | ast.JoinedStr) or called(node) in ('print', 'warn'): return
    if isinstance(node, ast.FunctionDef) and node.name.startswith(
        ('_repr', '__repr', '__str', '_picture', 'plot', 'show')):
        return
    if isinstance(node, ast.keyword) and node.arg in ('help', 'title', 'label', 'figsize'): return
    yield node
    for name, value in ast.iter_fields(node):
        if name == 'decorator_list':
            value = [d for d in value if 'grad' in ast.unparse(d) or 'inference' in ast.unparse(d)]
        if name in ('annotation', 'returns', 'msg'): continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST): yield from places(child)


def spliced(source, node, new):
    """The source with the text of one node replaced, the rest as it was; in brackets where it would
    say something else without."""
    whole, text = source.encode(), ast.unparse(new).strip()
    starts = [0, *(m.end() for m in re.finditer(b'\n', whole))]
    # a comprehension knows its place by its parts
    first, last = ((node.target, node.ifs[-1]) if isinstance(node, ast.comprehension) else
                   (node, getattr(new, 'until', node)))
    start, end = starts[first.lineno - 1] + first.col_offset, starts[last.end_lineno -
                                                                     1] + last.end_col_offset
    if isinstance(node, ast.comprehension): start = whole.rindex(b'for', 0, start)
    def put(text): return (whole[:start] + text.encode() + whole[end:]).decode()

    if not isinstance(new, ast.BinOp | ast.BoolOp | ast.Compare | ast.IfExp | ast.UnaryOp):
        return put(text)
    with contextlib.suppress(SyntaxError):
        if ast.dump(ast.parse(put(text))) == ast.dump(ast.parse(put(f'({text})'))): return put(text)
    return put(f'({text})')


def with_kinds(tree):
    "The tree, its names marked with the annotation of the parameter that they name."
    for f in ast.walk(tree):
        if isinstance(f, ast.FunctionDef):
            kinds = {
                a.arg: ast.unparse(a.annotation)
                for a in f.args.args + f.args.kwonlyargs if a.annotation
            }
            for n in ast.walk(f):
                if isinstance(n, ast.Name) and n.id in kinds: n.kind = kinds[n.id]
    return tree


def faults(source, room='', cell=0, fields=MappingProxyType({})):
    """Every fault that the operators can put into one cell, each with a name that lasts while its
    line and definition stand. Siblings come last: what another operator finds is its own."""
    tree, seen, count = with_siblings(with_kinds(ast.parse(source)), fields), {source}, Counter()
    found = [(getattr(top, 'name', None) or '-', node) for top in tree.body for node in places(top)]
    turns = [(*at, o) for last in (False, True) for at in found for o in OPERATORS if (o == 'sibling') == last]
    for where, node, operator in turns:
        for new in OPERATORS[operator](node):
            if (text := spliced(source, node, new)) in seen: continue
            seen.add(text)
            try: ast.parse(text)
            except SyntaxError: continue
            was, now = source.splitlines(), text.splitlines()
            first = next((i for i, (a, b) in enumerate(zip(was, now)) if a != b), min(len(was), len(now)))
            tail = next((i for i, (a, b) in enumerate(zip(was[::-1], now[::-1]))
                         if a != b or i >= min(len(was), len(now)) - first - 1), 0)
            before, after = (' '.join(l.strip() for l in t[first:len(t) - tail]) for t in (was, now))
            count[operator, before, after] += 1
            yield Mutant(
                f'{room}:{where}:{operator}:{short(operator, before, after, str(count[operator, before, after]))[:6]}',
                room, cell, operator, before, after, text)


def declared(sources):
    "{field: its annotations} of the classes in some cells."
    found = defaultdict(set)
    for n in (n for s in sources for c in ast.walk(ast.parse(s)) if isinstance(c, ast.ClassDef) for n in c.body):
        if isinstance(n, ast.AnnAssign): found[ast.unparse(n.target)].add(ast.unparse(n.annotation))
    return found
