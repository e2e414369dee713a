//! Dependencies the other way round: what a task releases when it is done.

use crate::tasks::Workload;

/// Which tasks wait for which.
#[derive(Default)]
pub struct Dependents {
    /// The tasks that wait for task `i` are `waiting[first[i] .. first[i + 1]]`. Empty without dependencies.
    first: Vec<u32>,
    waiting: Vec<u32>,
}

impl Dependents {
    /// Those of a workload.
    pub fn new(workload: &Workload) -> Self {
        if workload.dependencies.is_empty() {
            return Dependents::default();
        }
        let mut first = vec![0u32; workload.tasks.len() + 1];
        for &(_, after) in &workload.dependencies {
            first[after as usize + 1] += 1;
        }
        for i in 1..first.len() {
            first[i] += first[i - 1];
        }
        let mut fill = first.clone();
        let mut waiting = vec![0; workload.dependencies.len()];
        for &(task, after) in &workload.dependencies {
            waiting[fill[after as usize] as usize] = task;
            fill[after as usize] += 1;
        }
        Dependents { first, waiting }
    }

    /// The tasks that wait for this one.
    #[inline]
    pub fn of(&self, task: u32) -> &[u32] {
        match self.first.get(task as usize..task as usize + 2) {
            Some(&[from, to]) => &self.waiting[from as usize..to as usize],
            _ => &[],
        }
    }
}
