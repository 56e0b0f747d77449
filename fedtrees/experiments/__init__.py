"""Experiments: train once, attack many times, and store the results.

A suite (`suite`) is expanded into a plan of tasks (`plan`), which a runner (`runner`) computes in
several processes (`executor`). The store (`store`) keeps the results in a run folder. The function
`fedtrees.bench` and the command ``fedtrees bench`` run a suite.

Terms, in the order in which they appear in a bench:

- *Suite*: grids of tables, protocols, defenses, threats, attacks and seeds.
- *Task*: one unit of work, for example one training or one attack on it (`plan.Task`).
- *Federation config*: the table, the partition and the seed of a task, from which the federation is
  built (`plan.FederationConfig`, `federation.Federation`).
- *Group*: a training task and the tasks that use its training (`plan.TrainingGroup`).
- *Job*: the tasks that one process computes: a group, or a single baseline. If a process died, its
  job is repeated in *steps*, which are jobs that compute one task each (`runner.Job`).
- *Cell*: the stored result of a task, a file in the folder ``cells`` (`store`).

The report (`fedtrees.report`) reads rows of results, and knows no tasks:

- *Setting*: a table, a partition and a protocol. Defenses are compared within one setting.
- *Panel*: a setting under one threat.
"""
