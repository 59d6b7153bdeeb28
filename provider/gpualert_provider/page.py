"""The run page as HTML: values in, one self-contained document out. No script, nothing fetched, every text escaped.

It works where scripts do not run, since Airflow shows tabs of plugins in a sandboxed frame. What stands in a training's
log is hostile until escaped: everything below goes through Jinja's autoescape, and nothing is marked safe but our own
style.
"""

# ruff: noqa: E501 (lines of HTML)
from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jinja2
from markupsafe import Markup

from gpualert.taxonomy import (
    CLASS_FACTS,
    DOMAIN_SENTENCES,
    OUTLOOK_SENTENCES,
    FailureClass,
    FailureDomain,
    RetryOutlook,
)

#: Marks for people who do not see colours, and the colour's name in the style.
STATE_LOOKS: Mapping[str, tuple[str, str]] = {
    "SUCCEEDED": ("✔", "good"),
    "FAILED": ("✘", "bad"),
    "TIMED_OUT": ("⏱", "bad"),
    "STOPPED": ("■", "warn"),
    "LOST": ("?", "bad"),
    "UNREACHABLE": ("?", "warn"),
    "RUNNING": ("▶", "info"),
    "LAUNCHING": ("▶", "info"),
}


@dataclass(frozen=True)
class RunFacts:
    """
    What is known about one task instance; all of it may come from a hostile log.

    :param outcome: the XCom ``outcome``; None while there is none.
    :param ledger: the state store's ledger; None when the task never got as far as one.
    :param retry_decision: the XCom ``retry_decision``.
    :param task: Airflow's own: state, try_number, max_tries.
    """

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1
    outcome: Mapping[str, Any] | None = None
    ledger: Mapping[str, Any] | None = None
    retry_decision: Mapping[str, Any] | None = None
    task: Mapping[str, Any] = field(default_factory=dict)


def render(facts: RunFacts) -> str:
    """The page. Unknown values are shown as unknown; values of an unexpected shape are shown as they are."""
    outcome = facts.outcome if isinstance(facts.outcome, Mapping) else {}
    launches = _launches(facts.ledger)
    state = outcome.get("state") or _state_of(launches)
    mark, look = STATE_LOOKS.get(str(state), ("·", "info"))
    return _template().render(
        facts=facts,
        o=outcome,
        launches=launches,
        state=state,
        mark=mark,
        look=look,
        class_sentence=_sentence(FailureClass, outcome.get("failure_class"), lambda c: CLASS_FACTS[c].sentence),
        domain_sentence=_sentence(FailureDomain, outcome.get("domain"), lambda d: DOMAIN_SENTENCES[d]),
        outlook=_outlook(outcome.get("retry_outlook")),
        decision=facts.retry_decision or (launches[-1].get("retry") if launches else None),
        evidence=_items(outcome.get("evidence")),
        cascade=_items(outcome.get("cascade")),
        alternatives=_items(outcome.get("alternatives")),
        seen=_seen(outcome.get("observations")),
        raw=json.dumps(outcome, indent=2, ensure_ascii=False, default=str) if outcome else None,
        style=Markup(STYLE),
        duration=duration,
        size=size,
    )


def render_message(title: str, text: str) -> str:
    """A page that says one thing: not found, not allowed."""
    return _environment().from_string(_MESSAGE).render(title=title, text=text, style=Markup(STYLE))


def content_security_policy() -> str:
    """Nothing may run or be fetched; our style by its hash; only Airflow's own pages may frame it."""
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    )


def duration(seconds: Any) -> str:
    """``2 h 03 min``; ``unknown`` for what is no number."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        return "unknown"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def size(number: Any) -> str:
    """``1.2 MB``; ``unknown`` for what is no number."""
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        return "unknown"
    for unit in ("bytes", "kB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            return f"{number:.0f} bytes" if unit == "bytes" else f"{number:.1f} {unit}"
        number /= 1000
    raise AssertionError


def _launches(ledger: Any) -> list[Mapping[str, Any]]:
    entries = ledger.get("entries") if isinstance(ledger, Mapping) else None
    return _items(entries)


def _items(value: Any) -> list[Mapping[str, Any]]:
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        return []
    return [item for item in value if isinstance(item, Mapping)]


def _seen(value: Any) -> dict[str, Any] | None:
    """What was seen of the host, each part of the shape that the template expects; None when nothing was."""
    if not isinstance(value, Mapping):
        return None
    found: dict[str, Any] = {name: _items(value.get(name)) for name in ("gpus", "disks")}
    for name in ("memory", "scheduler"):
        found[name] = value[name] if isinstance(value.get(name), Mapping) else {}
    for name in ("kernel", "not_seen"):
        found[name] = [str(line) for line in value[name]] if isinstance(value.get(name), (list, tuple)) else []
    return found


def _state_of(launches: Sequence[Mapping[str, Any]]) -> str | None:
    if not launches:
        return None
    told = launches[-1].get("outcome")
    if isinstance(told, Mapping):
        return told.get("state")
    return "LAUNCHING" if launches[-1].get("status") == "maybe_launched" else "RUNNING"


def _sentence(vocabulary: Any, name: Any, find: Any) -> str | None:
    try:
        return str(find(vocabulary(name)))
    except (ValueError, KeyError):
        return None


def _outlook(value: Any) -> list[tuple[str, Any, str | None]]:
    if not isinstance(value, Mapping):
        return []
    names = (("Same host", value.get("same_host")), ("Another host", value.get("other_host")))
    return [(where, name, _sentence(RetryOutlook, name, lambda o: OUTLOOK_SENTENCES[o])) for where, name in names]


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.ChainableUndefined
    )


@cache
def _template() -> jinja2.Template:
    return _environment().from_string(_PAGE)


STYLE = """
:root{color-scheme:light dark;--fg:#1b1f24;--bg:#fff;--soft:#f4f6f8;--line:#d5dae0;--dim:#59636e;
--good:#1a7f37;--bad:#c4262e;--warn:#9a6700;--info:#0969da}
@media (prefers-color-scheme:dark){:root{--fg:#e6edf3;--bg:#0d1117;--soft:#161b22;--line:#30363d;--dim:#9198a1;
--good:#3fb950;--bad:#f85149;--warn:#d29922;--info:#4493f8}}
*{box-sizing:border-box}
body{margin:0;padding:1.5rem;color:var(--fg);background:var(--bg);font:15px/1.5 system-ui,sans-serif}
main{max-width:70rem;margin:auto}
h1{font-size:1.35rem;margin:0 0 .25rem}
h2{font-size:1.02rem;margin:1.75rem 0 .5rem}
.dim{color:var(--dim)}
.chip{display:inline-block;margin-left:.5rem;font-size:1rem;padding:.05rem .6rem;border-radius:1rem;border:1px solid currentColor;font-weight:600}
.good{color:var(--good)}.bad{color:var(--bad)}.warn{color:var(--warn)}.info{color:var(--info)}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(15rem,1fr));gap:.75rem;margin:1rem 0}
.card{border:1px solid var(--line);border-radius:.5rem;padding:.75rem;background:var(--soft)}
.card b{display:block;font-size:1.05rem;overflow-wrap:anywhere}
pre{margin:.35rem 0;padding:.6rem;border:1px solid var(--line);border-radius:.4rem;background:var(--soft);
white-space:pre-wrap;overflow-wrap:anywhere;font:13px/1.45 ui-monospace,monospace}
pre.root{border-left:4px solid var(--bad)}
code{font:13px ui-monospace,monospace;overflow-wrap:anywhere}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:14px}
th,td{text-align:left;padding:.35rem .6rem;border-bottom:1px solid var(--line);vertical-align:top}
th{font-weight:600}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.25rem 1rem;margin:0}
dt{color:var(--dim)}dd{margin:0;overflow-wrap:anywhere}
.advice{border-left:4px solid var(--info);padding:.4rem .8rem;background:var(--soft)}
"""

_MESSAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ title }}</title><style>{{ style }}</style></head>
<body><main><h1>{{ title }}</h1><p>{{ text }}</p></main></body></html>
"""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ facts.task_id }}: {{ state or "not launched" }}</title>
<style>{{ style }}</style>
</head>
<body><main>
<header>
<h1>{{ facts.task_id }}{% if facts.map_index >= 0 %} [{{ facts.map_index }}]{% endif %}
<span class="chip {{ look }}" data-testid="state">{{ mark }} {{ state or "not launched yet" }}</span></h1>
<div class="dim">{{ facts.dag_id }} · {{ facts.run_id }}
{% if facts.task.state %}· task {{ facts.task.state }}, try {{ facts.task.try_number }}{% endif %}</div>
</header>

{% if not o and not launches %}
<p>This task has launched no training so far. If it is a GPU training, its task log tells how far it is.</p>
{% endif %}

{% if o %}
<div class="cards">
<div class="card"><span class="dim">What happened</span><b data-testid="class">{{ o.failure_class or "not known" }}</b>
{{ class_sentence or "" }}</div>
<div class="card"><span class="dim">Whose it is</span><b data-testid="domain">{{ o.domain or "not known" }}</b>
{{ domain_sentence or "" }}</div>
<div class="card"><span class="dim">How it ended</span>
<b>{% if o.signal %}{{ o.signal }}{% elif o.exit_code is not none and o.exit_code is defined %}exit {{ o.exit_code }}\
{% else %}nobody saw the end{% endif %}</b>
{% if o.stopped_by %}stopped by {{ o.stopped_by }}; {% endif %}{% if o.lost_reason %}{{ o.lost_reason }}; {% endif %}
ran {{ duration(o.duration_s) }}</div>
</div>

{% if o.advice %}<p class="advice">{{ o.advice }}</p>{% endif %}

<h2>Evidence</h2>
{% for item in evidence %}
<div class="dim">{{ item.source }}{% if item.line is not none and item.line is defined %}, line {{ item.line }}{% endif %}\
{% if item.offset is not none and item.offset is defined %}, byte {{ item.offset }}{% endif %}\
{% if item.rank is not none and item.rank is defined %}, rank {{ item.rank }}{% endif %}\
{% if item.rule %} · {{ item.rule }}{% endif %}</div>
<pre class="{{ 'root' if loop.first else '' }}" data-testid="evidence">{{ item.text }}</pre>
{% else %}
<p class="dim">{{ "None was needed." if state == "SUCCEEDED" else "Nothing that was seen decides the cause." }}</p>
{% endfor %}
{% if cascade %}<details><summary>What followed from it ({{ cascade|length }})</summary>
{% for item in cascade %}<div class="dim">{{ item.source }}, line {{ item.line }}</div><pre>{{ item.text }}</pre>{% endfor %}
</details>{% endif %}
{% if alternatives %}<details><summary>What else was considered ({{ alternatives|length }})</summary>
<ul>{% for item in alternatives %}<li><b>{{ item.failure_class }}</b>: {{ item.reason }}</li>{% endfor %}</ul></details>{% endif %}
{% if o.not_seen %}<p class="dim">Could not be looked at: {{ o.not_seen|join("; ") }}.</p>{% endif %}
{% for warning in o.warnings or () %}<p class="warn">⚠ {{ warning }}</p>{% endfor %}
{% endif %}

{% if outlook or decision %}
<h2>Trying again</h2>
<dl>
{% for where, name, sentence in outlook %}<dt>{{ where }}</dt><dd><b>{{ name }}</b> {{ sentence or "" }}</dd>{% endfor %}
{% if decision %}<dt>Retry policy</dt><dd data-testid="decision"><b>{{ decision.action }}</b>
{% if decision.delay_s is not none and decision.delay_s is defined %}after {{ duration(decision.delay_s) }}{% endif %}
{{ decision.reason }}</dd>{% endif %}
</dl>
{% endif %}

{% if launches %}
<h2>Launches</h2>
<div class="scroll"><table>
<thead><tr><th>Launch</th><th>Tries</th><th>Host</th><th>State</th><th>Class</th><th>Ended</th><th>Ran</th><th>Then</th></tr></thead>
<tbody>
{% for entry in launches %}
<tr><td><code>{{ entry.launch_id or entry.number }}</code></td>
<td>{% for attempt in entry.attempts or () %}{{ attempt.number }}{{ "" if loop.last else ", " }}{% endfor %}</td>
<td>{{ entry.host_name or "this machine" }}{% if entry.conn_id %} <span class="dim">({{ entry.conn_id }})</span>{% endif %}</td>
<td>{{ entry.outcome.state or entry.status }}{% if entry.stop_asked %} <span class="dim">(asked to stop)</span>{% endif %}</td>
<td>{{ entry.outcome.failure_class or "" }}</td><td>{{ entry.outcome.ended_at or "" }}</td>
<td>{{ duration(entry.outcome.duration_s) if entry.outcome else "" }}</td>
<td>{{ entry.retry.action or "" }}</td></tr>
{% endfor %}
</tbody></table></div>
{% endif %}

{% if o %}
<h2>Where it is</h2>
<dl>
<dt>Host</dt><dd>{{ o.host.name or "unknown" }}</dd>
<dt>Log</dt><dd><code data-testid="log">{{ o.log_path or "unknown" }}</code> ({{ size(o.log_size_bytes) }}\
{% if o.log_truncated %}, truncated by its writer{% endif %})</dd>
<dt>Run directory</dt><dd><code>{{ o.run_directory or "unknown" }}</code></dd>
<dt>On the host</dt><dd><code>gpualert logs {{ o.launch_id }}</code></dd>
<dt>Started</dt><dd>{{ o.started_at or "unknown" }}</dd>
<dt>Ended</dt><dd>{{ o.ended_at or "unknown" }}</dd>
{% if o.git %}<dt>Git</dt><dd><code>{{ o.git.commit }}</code>{% if o.git.dirty %} with uncommitted changes{% endif %}</dd>{% endif %}
{% if o.survivors %}<dt>Survivors</dt><dd class="bad">{{ o.survivors|length }} process(es) could not be killed</dd>{% endif %}
</dl>
{% if seen %}
<h2>What the host showed</h2>
<dl data-testid="observations">
{% if seen.memory.peak_bytes %}<dt>Memory</dt><dd>peak {{ size(seen.memory.peak_bytes) }}\
{% if seen.memory.limit_bytes %} of {{ size(seen.memory.limit_bytes) }}{% endif %}</dd>{% endif %}
{% for gpu in seen.gpus %}<dt>GPU {{ gpu.index }}</dt><dd>{{ gpu.name or "unknown" }}, {{ size(gpu.memory_used_before_bytes) }} \
in use before, {{ size(gpu.memory_used_after_bytes) }} after, of {{ size(gpu.memory_total_bytes) }}\
{% if gpu.xids is sequence %}{% for xid in gpu.xids %}; Xid {{ xid }}{% endfor %}{% endif %}{% if gpu.error %}; {{ gpu.error }}{% endif %}</dd>
{% endfor %}
{% for disk in seen.disks %}<dt>Disk</dt><dd><code>{{ disk.path }}</code>: {{ size(disk.free_bytes) }} free of \
{{ size(disk.total_bytes) }}</dd>
{% endfor %}
{% if seen.scheduler %}<dt>Slurm</dt><dd>job {{ seen.scheduler.job }}: {{ seen.scheduler.state }}</dd>{% endif %}
{% for line in seen.kernel %}<dt>Kernel</dt><dd><code>{{ line }}</code></dd>{% endfor %}
{% for reason in seen.not_seen %}<dt>Not seen</dt><dd>{{ reason }}</dd>{% endfor %}
</dl>
{% endif %}
<details><summary>Everything, as JSON</summary><pre>{{ raw }}</pre></details>
{% endif %}
</main></body></html>
"""
