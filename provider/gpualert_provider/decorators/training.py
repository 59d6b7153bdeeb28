"""``@task.gpu_training``: a function whose return value is the command."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import (
    DecoratedOperator,
    TaskDecorator,
    context_merge,
    determine_kwargs,
    task_decorator_factory,
)
from airflow.sdk.definitions._internal.types import SET_DURING_EXECUTION

from gpualert_provider.exceptions import InvalidRequest
from gpualert_provider.operators.training import GPUTrainingOperator

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context


class GpuTrainingDecoratedOperator(DecoratedOperator, GPUTrainingOperator):
    """
    The operator behind the decorator; its other arguments are those of :class:`GPUTrainingOperator`.

    :param python_callable: called on the worker, each try anew, before the launch; returns the command, a string (which
        is rendered as a template afterwards) or a list of strings.
    """

    template_fields: Sequence[str] = (*DecoratedOperator.template_fields, *GPUTrainingOperator.template_fields)
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **DecoratedOperator.template_fields_renderers,
        **GPUTrainingOperator.template_fields_renderers,
    }
    custom_operator_name = "@task.gpu_training"
    # So that "Rendered Templates" shows the command that ran.
    overwrite_rtif_after_execution = True

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            python_callable=python_callable,
            op_args=op_args,
            op_kwargs=op_kwargs,
            command=SET_DURING_EXECUTION,
            **kwargs,
        )

    def execute(self, context: Context) -> Any:
        context_merge(context, self.op_kwargs)
        kwargs = determine_kwargs(self.python_callable, self.op_args, context)
        self.command = self.python_callable(*self.op_args, **kwargs)
        if not isinstance(self.command, (str, list, tuple)):
            raise InvalidRequest(
                f"@task.gpu_training: expected {self.python_callable.__name__}() to return the command as a string "
                f"or a list of strings, found {type(self.command).__name__}"
            )
        self.render_template_fields(context)
        return GPUTrainingOperator.execute(self, context)


def gpu_training_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """
    ``@task.gpu_training(ssh_conn_id=…, …)``: the function's return value is the command to run on the GPU host.

    :param python_callable: the function.
    :param kwargs: those of :class:`GPUTrainingOperator`, without ``command``.
    """
    return task_decorator_factory(
        python_callable=python_callable, decorated_operator_class=GpuTrainingDecoratedOperator, **kwargs
    )
