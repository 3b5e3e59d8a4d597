"""torchrun, whose ranks are forks of it: forking_torchrun.py OPTIONS."""

from unittest import mock

import forking
from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler
from torch.distributed.run import main

with mock.patch.object(subprocess_handler, "Popen", forking.Popen):
    main()
