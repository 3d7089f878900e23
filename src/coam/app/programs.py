"""The HTTP API: the tabs' jobs for programs, with the same limits and queue. Off unless asked for."""

from __future__ import annotations

from typing import Any

from coam.app.engine import Limits
from coam.app.jobs import ONE_JOB, Job, for_programs


def publish(gradio: Any, jobs: dict[str, tuple[Job, list[Any]]], limits: Limits) -> None:
    """Make each job an endpoint of its name: takes what its tab takes, gives its facts and its files."""
    for name, (job, inputs) in jobs.items():
        seconds = limits.reconstruction_seconds if name == "reconstruct" else limits.job_seconds
        with gradio.Row(visible=False):
            asked = gradio.Button(visible=False)
            facts = gradio.JSON(visible=False, label="facts")
            files = gradio.File(visible=False, file_count="multiple", label="files", interactive=False)
        asked.click(
            for_programs(gradio, job, seconds),
            inputs,
            [facts, files],
            api_name=name,
            api_description=(job.__doc__ or name).strip(),
            api_visibility="public",
            **ONE_JOB,
        )
