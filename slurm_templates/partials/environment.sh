{# What the agents find: the profile's modules and setup lines, and the launcher. The ranks' own variables are in the
   plan, not here: in a script everyone could read them, and a comma or a newline would have to be hidden from Slurm. #}

# Where the run was composed, whatever the directory this was started from.
cd {{ job.workdir | quote }} || exit
{% if job.setup %}

# The profile's own lines, as they stand there.
# shellcheck disable=all
{
:
{% for line in job.setup %}
{{ line }}
{% endfor %}
}
{% endif %}

# The node agent and the ranks find the launcher here.
export PYTHONPATH={{ job.code | quote }}"${PYTHONPATH:+:$PYTHONPATH}"
