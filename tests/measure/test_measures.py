"What a run is judged by. The tasks are those of the package: a lesson that completes a task again changes nothing."
from dataclasses import fields
from rookworld_nb.measure.measures import aims_of
from rookworld_nb.task import TASKS, Aim


def test_every_aim_has_words_where_words_belong():
    aims = [aim for letter in 'PA' for aim in TASKS[letter].aims]
    for aim in aims:
        assert all(type(getattr(aim, f.name)) is type(getattr(Aim('', ''), f.name)) for f in fields(Aim)), aim
    assert sorted(aim.guard for aim in aims) == [g for g in (False, True) for _ in aims_of(g)]
