//! Physical memory through its public operations: random programs of the work of several threads, with failing driver calls, against a naive
//! model and a device that is as strict as a driver.

#[path = "physical_model/machine.rs"]
mod machine;
#[path = "physical_model/naive.rs"]
mod naive;
