"""Run a policy that because-rl exported: this file needs onnxruntime and numpy, and nothing else.

    from policy_runner import Policy

    policy = Policy("policy.onnx")
    policy.act(observation)                  # one row or many; nothing is remembered between calls
    episode = policy.start(seed=0)           # through an episode a planner starts from its last plan
    episode.act(observation, goal, steps_left)

`policy.about` says what the columns are. An action is a number where actions are numbered, else its columns.
"""

import hashlib
import json

import numpy as np
import onnxruntime


class Policy:
    def __init__(self, path, threads=0):
        """`threads`: how many one decision may use; 0: as many as there are cores."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.about = json.loads(self.session.get_modelmeta().custom_metadata_map["because-rl"])
        self.inputs = {node.name: node for node in self.session.get_inputs()}
        self.outputs = [node.name for node in self.session.get_outputs()]

    def act(self, observation, goal=None, steps_left=None):
        """The action in a state, or in each of n states; (columns,) or (n, columns)."""
        rows = np.asarray(observation, np.float32)
        if rows.ndim == 1:
            return self.start().act(rows, goal, steps_left)
        goals = [None] * len(rows) if goal is None else np.broadcast_to(goal, (len(rows), np.shape(goal)[-1]))
        return np.array([self.act(row, one, steps_left) for row, one in zip(rows, goals, strict=True)])

    def start(self, seed=0):
        """An episode; `seed` decides the planner's random numbers."""
        return Episode(self, seed)


class Episode:
    def __init__(self, policy, seed=0):
        self.policy, self.memory = policy, {}
        number = int.from_bytes(hashlib.sha256(f"{seed}/plan".encode()).digest()[:4], "little") % 2**31
        for part in policy.about["memory"]:
            node = policy.inputs[part["input"]]
            dtype = np.int64 if node.type == "tensor(int64)" else np.float32
            start = number if part["start"] == "seed" else float(part["start"])
            self.memory[part["input"]] = np.full(node.shape, start, dtype)

    def act(self, observation, goal=None, steps_left=None):
        """The action of the next step; `steps_left`: until the episode ends, None: the horizon."""
        policy = self.policy
        horizon = policy.about["horizon"]
        steps_left = horizon if steps_left is None else steps_left
        if not 1 <= steps_left <= horizon:
            raise ValueError(f"Got steps_left={steps_left}; need 1 to {horizon}.")
        given = {"observation": observation, "goal": goal, "steps_left": steps_left}
        feed = dict(self.memory)
        for name in policy.inputs.keys() & given.keys():
            if given[name] is None:
                raise ValueError(f"Got no {name}; need {policy.inputs[name].shape[0]} columns.")
            integer = name == "steps_left"
            array, shape = np.asarray(given[name], np.int64 if integer else np.float32), policy.inputs[name].shape
            if list(array.shape) != shape or not np.isfinite(array).all():
                raise ValueError(f"Got a {name} of shape {array.shape}: {array}; need {tuple(shape)}, finite.")
            feed[name] = array
        made = dict(zip(policy.outputs, policy.session.run(None, feed), strict=True))
        self.memory = {part["input"]: made[part["output"]] for part in policy.about["memory"]}
        action = made["action"]
        if not np.isfinite(action).all():
            raise ValueError("The action is not a finite number: the file is damaged, or the observation is extreme.")
        return int(action) if action.ndim == 0 else action
