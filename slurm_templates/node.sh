#!/bin/bash
# {{ plan.name | comment }}, run {{ plan.run_id | comment }}: the command of one host. Written by `python -m launcher commands`.
# Its argument is the number of this host: {% for host in plan.hosts %}{{ loop.index0 }} is {{ host | comment }}{{ ", " if not loop.last }}{% endfor %}.
# All that the run does is decided in {{ job.plan_file | comment }}

# A $ in a quoted path is a $.
# shellcheck disable=SC2016
{% include "partials/environment.sh" %}
{% include "partials/container.sh" %}

exec {{ job.agent | words }} "$@"
