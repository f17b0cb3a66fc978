"""A plan and a job, as files for engines that run on many machines. Pure, but for the templates it renders."""
