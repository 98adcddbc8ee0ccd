"""A stream that shows single images of any source in another look in each task."""

from dataclasses import dataclass
from typing import ClassVar

from streams.errors import fault
from streams.images import ImageSource
from streams.look_tasks import LOOKS, PERMUTED, LookTasks
from streams.recipe import addition


@dataclass(frozen=True)
class ImageLooks(ImageSource, LookTasks):
    """All classes in each task, with the pixels permuted, the images rotated, or the labels permuted.

    As permuted, rotated and label-permuted MNIST, of images in any form (`images`) and with one or three channels; grey
    images are shown with three equal ones where pixels move.
    """

    name: ClassVar[str] = "image_looks"
    least_images: ClassVar[int] = 1

    look: str = addition(PERMUTED, f"what changes from task to task: {', '.join(LOOKS)}")
    degrees: int = addition(360, "range of the angles of look rotated, which starts at 0", ge=1, le=360)

    def check(self) -> list[str]:
        rule = f"must be one of {', '.join(LOOKS)}"
        return super().check() + ([] if self.look in LOOKS else [fault(f"{self.name}.look", rule, self.look)])
