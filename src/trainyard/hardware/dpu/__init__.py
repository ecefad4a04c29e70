"""Inside a DPU: `instructions` of software arithmetic, the `pipeline` of tasklets, a `linear_step` written for it, the
`host_link`."""
