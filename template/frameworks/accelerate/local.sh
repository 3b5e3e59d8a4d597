{% extends 'template/frameworks/pytorch/local.sh' -%}
{% block launch %}
  launch=(-m accelerate.commands.launch --config_file configs/accelerate.yaml --num_processes "$processes"
    --num_machines 1 --main_process_port 0  # 0: a free port
    --max_restarts "${RESTARTS:-0}" --log_dir "runs/$name/logs" --tee "${logged%,}")
{%- if [gpus, 1] | max * nodes < 2 %}
  launch+=(--multi_gpu)  # several processes, on CPUs too
{%- endif %}
{%- endblock %}
