{# The image, where the profile names one. Only pyxis starts the agent in it; the others start the ranks. #}
{% if job.container_args %}

# pyxis: Slurm starts the whole task in the image. Variables are handed on by name, so that no value stands here.
# shellcheck disable=SC2054  # commas in them are meant
container=(
{% for argument in job.container_args %}
    {{ argument | quote }}
{% endfor %}
)
{% elif plan.container %}

# The agent runs outside of any image, and starts the ranks in {{ plan.container.image | comment }} through {{ plan.container.runtime }}.
{% endif %}
